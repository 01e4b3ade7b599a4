package msccl

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// sources are the files of testdata, and the public ones that are not long, by name.
func sources(t testing.TB) map[string][]byte {
	return files(t, "testdata/*.xml", "msccl-xml/*.xml", 100<<10)
}

// files are those of our own pattern and, where KOLO_DATA names them, those of the public
// one, without the long ones.
func files(t testing.TB, own, public string, long int) map[string][]byte {
	out := map[string][]byte{}
	patterns := []string{own}
	if d := os.Getenv("KOLO_DATA"); d != "" {
		patterns = append(patterns, filepath.Join(d, public))
	}
	for _, p := range patterns {
		list, err := filepath.Glob(p)
		require.NoError(t, err)
		require.NotEmpty(t, list)
		for _, name := range list {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			if len(data) < long {
				out[filepath.Base(name)] = data
			}
		}
	}
	return out
}

// mutation is a change of a step; it says what it is, or "" where it does not apply.
type mutation struct {
	name  string
	fatal bool // it can never be harmless
	apply func(rng *rand.Rand, f *File, s *Step) string
}

var mutations = []mutation{
	{"a reduction only stores", true, func(_ *rand.Rand, _ *File, s *Step) string {
		with := map[Op]Op{RecvReduceCopy: Recv, RecvReduceCopySend: RecvCopySend, Reduce: Copy}
		op, ok := with[s.Op]
		if !ok {
			return ""
		}
		s.Op = op
		return "stores"
	}},
	{"a store reduces", true, func(_ *rand.Rand, f *File, s *Step) string {
		with := map[Op]Op{Recv: RecvReduceCopy, RecvCopySend: RecvReduceCopySend}
		op, ok := with[s.Op]
		if !ok || !f.Collective.Reduces() {
			return ""
		}
		s.Op, s.Src = op, s.Dst
		return "reduces"
	}},
	{"a message is not sent", true, func(_ *rand.Rand, _ *File, s *Step) string {
		with := map[Op]Op{RecvCopySend: Recv, RecvReduceCopySend: RecvReduceCopy, Send: Nop}
		op, ok := with[s.Op]
		if !ok {
			return ""
		}
		s.Op = op
		return "sends nothing"
	}},
	{"another offset", false, func(rng *rand.Rand, f *File, s *Step) string {
		at := &s.Src
		if !s.Op.reads() || s.Op.writes() && rng.IntN(2) == 0 {
			at = &s.Dst
		}
		at.Offset += 1 + rng.IntN(f.Chunks)
		return fmt.Sprintf("offset %d", at.Offset)
	}},
	{"another count", false, func(_ *rand.Rand, _ *File, s *Step) string {
		s.Count++
		return fmt.Sprintf("%d chunks", s.Count)
	}},
	{"a dependency is dropped", false, func(_ *rand.Rand, _ *File, s *Step) string {
		if s.DepBlock < 0 {
			return ""
		}
		s.DepBlock, s.DepStep = -1, -1
		return "waits for nothing"
	}},
	{"it waits for itself", true, func(_ *rand.Rand, f *File, s *Step) string {
		for _, g := range f.GPUs {
			for b := range g.Blocks {
				for i := range g.Blocks[b].Steps {
					if &g.Blocks[b].Steps[i] == s {
						s.DepBlock, s.DepStep = b, i
						return "waits for itself"
					}
				}
			}
		}
		return ""
	}},
}

var stepName = regexp.MustCompile(`gpu \d+, tb \d+, step \d+ \(\w+\)`)

// A file with one thing changed is refused, or is no worse: then a run of it by other
// means gives the right result.
func TestMutantsAreRefused(t *testing.T) {
	made, refused := map[string]int{}, map[string]int{}
	for name, data := range sources(t) {
		rng := rand.New(rand.NewPCG(1, uint64(len(data))))
		for _, m := range mutations {
			for range 8 {
				f, err := Read(data)
				require.NoError(t, err)
				k := rng.IntN(len(f.GPUs))
				if len(f.GPUs[k].Blocks) == 0 {
					continue
				}
				b := rng.IntN(len(f.GPUs[k].Blocks))
				i := rng.IntN(max(1, len(f.GPUs[k].Blocks[b].Steps)))
				if i >= len(f.GPUs[k].Blocks[b].Steps) {
					continue
				}
				what := m.apply(rng, f, &f.GPUs[k].Blocks[b].Steps[i])
				if what == "" {
					continue
				}
				what = fmt.Sprintf("%s, %s: %s", name, f.name(k, b, i), what)
				made[m.name]++
				p, err := f.Plan()
				if err != nil {
					refused[m.name]++
					if !stepName.MatchString(err.Error()) && !strings.Contains(err.Error(), "result") {
						t.Errorf("%s: the error names no step: %v", what, err)
					}
					continue
				}
				require.False(t, m.fatal, "%s: accepted", what)
				for range 20 {
					if err := play(f, max(1, p.Report.Credits), rng); err != nil {
						t.Errorf("%s: accepted, but %v", what, err)
						break
					}
				}
			}
		}
	}
	t.Logf("made %v, refused %v", made, refused)
}

// The right files pass the same run, so that it says something.
func TestPlayedFilesAreRight(t *testing.T) {
	for name, data := range sources(t) {
		f, err := Read(data)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(2, 3))
		require.NoError(t, play(f, 1, rng), name)
		last := f.GPUs[len(f.GPUs)-1].Blocks
		last[len(last)-1].Steps = nil
		require.Error(t, play(f, 1, rng), name)
	}
}

func TestCutFilesAreRefused(t *testing.T) {
	for name, data := range sources(t) {
		end := bytes.LastIndex(data, []byte("</algo>"))
		step := 1 << 10
		if len(data) < 8<<10 {
			step = 7
		}
		for n := 0; n < end; n += step {
			_, err := Import(data[:n])
			require.ErrorIs(t, err, kolo.ErrArgument, "%s cut at %d", name, n)
			require.ErrorContains(t, err, "line ", "%s cut at %d", name, n)
		}
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	data, err := os.ReadFile("testdata/allreduce-pairs-2.xml")
	require.NoError(t, err)
	for _, tc := range []struct{ name, from, to, why string }{
		{"huge gpus", `ngpus="2"`, `ngpus="99999999999999999999"`, "ngpus"},
		{"more gpus than there are", `ngpus="2"`, `ngpus="3"`, "2 gpu elements"},
		{"huge chunks", `nchunksperloop="2"`, `nchunksperloop="1048577"`, "nchunksperloop"},
		{"huge scratch", `s_chunks="4"`, `s_chunks="4000000000"`, "s_chunks"},
		{"huge count", `cnt="2" depid="-1" deps="-1" hasdep="1"`, `cnt="1048576" depid="-1" deps="-1" hasdep="1"`, "gpu 0, tb 0, step 0 (s): bad argument: chunks 0 to 1048575 of in, which has 2"},
		{"negative count", `cnt="1"`, `cnt="-1"`, "cnt"},
		{"no count", `cnt="1"`, ``, "no cnt"},
		{"swapped peers", `send="1" recv="1"`, `send="0" recv="0"`, "its peer is gpu 0"},
		{"no peer", `send="1" recv="1"`, `send="-1" recv="1"`, "no peer"},
		{"two owners", `<tb id="1" send="-1"`, `<tb id="1" send="1"`, "both have the connection"},
		{"swapped dependency", `depid="0" deps="1" hasdep="1"`, `depid="1" deps="0" hasdep="1"`, "race"},
		{"dependency nowhere", `depid="0" deps="0"`, `depid="9" deps="0"`, "waits for step 0 of tb 9"},
		{"steps out of order", `s="1" type="r"`, `s="2" type="r"`, "numbered 2"},
		{"blocks out of order", `<tb id="1"`, `<tb id="3"`, "tb 3 stands where tb 1"},
		{"ranks out of order", `<gpu id="1"`, `<gpu id="0"`, "gpu 0 stands where gpu 1"},
		{"op", `type="re"`, `type="rex"`, `no step type "rex"`},
		{"buffer", `srcbuf="s"`, `srcbuf="x"`, `no buffer "x"`},
		{"collective", `coll="allreduce"`, `coll="custom"`, "custom"},
		{"channel", `chan="0"`, `chan="1"`, "channel 1 of 1"},
		{"window", `minBytes="16"`, `minBytes="100000"`, "minBytes 100000 is more"},
		{"attribute twice in one another's place", `srcoff="2" dstbuf="i" dstoff="0"`, `srcoff="0" dstbuf="i" dstoff="2"`, "gpu 0, tb 1, step 1 (re)"},
		{"not XML", `<gpu id="0"`, `<gpu id=0`, "line 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := bytes.Replace(data, []byte(tc.from), []byte(tc.to), 1)
			require.NotEqual(t, data, bad)
			_, err := Import(bad)
			require.ErrorContains(t, err, tc.why)
		})
	}
}

// A circle of dependencies within a rank is found before anything is made of it.
func TestCircleInARank(t *testing.T) {
	data, err := os.ReadFile("testdata/allreduce-pairs-2.xml")
	require.NoError(t, err)
	f, err := Read(data)
	require.NoError(t, err)
	f.GPUs[0].Blocks[0].Steps[0].DepBlock, f.GPUs[0].Blocks[0].Steps[0].DepStep = 1, 2
	_, err = f.Plan()
	require.ErrorContains(t, err, "gpu 0, tb 0, step 0 (s): it waits for step 2 of tb 1, and that in the end for this one")
}

func FuzzImport(f *testing.F) {
	for _, data := range sources(f) {
		if len(data) < 16<<10 {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Import(data)
		if err != nil {
			return
		}
		again, err := Read(p.XML())
		require.NoError(t, err)
		require.Equal(t, p.GPUs, again.GPUs)
		if _, err := p.Entry(); err != nil {
			require.ErrorIs(t, err, kolo.ErrUnsupported)
		}
	})
}

// No dependency list of a file grows with the square of its length.
func TestChainsOfNopsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`<algo name="n" nchannels="1" nchunksperloop="1" ngpus="1" coll="allreduce" inplace="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="9000">`)
	const blocks = 4000
	for k := range blocks {
		fmt.Fprintf(&b, `<tb id="%d" send="-1" recv="-1"><step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="%d" cnt="1"/></tb>`, k, k)
	}
	fmt.Fprintf(&b, `<tb id="%d" send="-1" recv="-1">`, blocks)
	for k := range blocks {
		fmt.Fprintf(&b, `<step s="%d" type="nop" cnt="0" depid="%d" deps="0"/>`, k, k)
	}
	b.WriteString(`</tb></gpu></algo>`)
	_, err := Import([]byte(b.String()))
	require.ErrorContains(t, err, "dependencies")
	require.True(t, slices.Contains(strings.Fields(err.Error()), "(nop):"))
}
