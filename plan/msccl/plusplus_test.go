package msccl

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// plusplus are the files of testdata and, where KOLO_DATA names them, the public ones.
func plusplus(t testing.TB) map[string][]byte {
	return files(t, "testdata/*.json", "mscclpp-json/*.json", 1<<30)
}

// unmapped are the public files that use what a switch, a loop or a group of thread
// blocks does.
var unmapped = map[string]bool{"allreduce_pipeline.json": true, "reduce_nvls.json": true, "reduce_nvls_pipeline.json": true,
	"reduce_pack_tbg.json": true, "reduce_tbg.json": true, "transfer_pack_tbg.json": true}

func TestPlusPlusPlans(t *testing.T) {
	for name, data := range plusplus(t) {
		t.Run(name, func(t *testing.T) {
			p, err := Import(data)
			if unmapped[name] {
				require.ErrorIs(t, err, kolo.ErrUnsupported)
				require.ErrorContains(t, err, "no counterpart")
				return
			}
			require.NoError(t, err)
			require.Zero(t, p.Report.Credits)
			e, err := p.Entry()
			require.NoError(t, err)
			again, err := Import(p.XML())
			require.NoError(t, err)
			require.Equal(t, p.File, again.File)
			require.NoError(t, play(again.File, 1+again.Report.Credits, rand.New(rand.NewPCG(1, 2))))
			require.Equal(t, e.Report.SameBits, p.Report.SameBits)
		})
	}
}

// What orders the accesses of two ranks cannot be left out.
func TestPlusPlusWithoutASignalIsRefused(t *testing.T) {
	data, err := os.ReadFile("testdata/allreduce-onesided-2.json")
	require.NoError(t, err)
	for _, tc := range []struct{ name, from, to, why string }{
		{"a race", `"dst_buff": [{"buffer_id": 0, "index": 1, "size": 1}]`, `"dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}]`, "nothing orders it"},
		{"no signal", `{"name": "signal", "channel_ids": [0], "channel_type": "memory"},`, ``, "waits for ever"},
		{"stores", `"rre"`, `"put"`, ""},
		{"bad chunk", `"index": 1`, `"index": 7`, "gpu 0, tb 0, op"},
		{"bad buffer", `"buffer_id": 0`, `"buffer_id": 5`, "no remote buffer 5"},
		{"bad channel", `"channel_ids": [0]`, `"channel_ids": [3]`, "no memory channel 0"},
		{"bad peer", `"connected_to": [1]`, `"connected_to": [9]`, "gpu 9"},
		{"unknown op", `"rre"`, `"glres"`, "no counterpart"},
		{"cut", `"gpus"`, `"gpu`, "invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := bytes.Replace(data, []byte(tc.from), []byte(tc.to), 1)
			require.NotEqual(t, data, bad)
			_, err := ImportPlusPlus(bad)
			require.ErrorContains(t, err, tc.why)
		})
	}
}

func FuzzImportPlusPlus(f *testing.F) {
	for _, data := range plusplus(f) {
		f.Add(data)
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		if p, err := ImportPlusPlus(data); err == nil {
			_, _ = p.Entry() // it must not panic
		}
	})
}
