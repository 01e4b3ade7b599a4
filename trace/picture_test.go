package sim_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
)

var drawn = []sim.Span{
	{Lane: "npu0/compute", Name: "mat<mul>", Begin: ms, End: 3 * ms},
	{Lane: "hccs 0>1", Name: "copy", Bytes: 56, Begin: 2 * ms, End: 2*ms + 500},
	{Lane: "npu0/compute", Name: "mat<mul>", Begin: 3 * ms, End: 5 * ms},
}

func TestTraceIsWhatViewersRead(t *testing.T) {
	var out strings.Builder
	require.NoError(t, sim.WriteTrace(&out, drawn))
	var got struct {
		Events []map[string]any `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal([]byte(out.String()), &got))
	require.Len(t, got.Events, 2+3)
	require.Equal(t, map[string]any{"name": "hccs 0>1"}, got.Events[1]["args"])
	require.Equal(t, map[string]any{"name": "copy", "ph": "X", "pid": 0.0, "tid": 1.0, "ts": 2000.0, "dur": 0.5,
		"args": map[string]any{"bytes": 56.0}}, got.Events[3])
}

func TestPictureIsWellFormed(t *testing.T) {
	for _, spans := range [][]sim.Span{nil, drawn} {
		var out strings.Builder
		require.NoError(t, sim.WriteSVG(&out, spans))
		d, rects := xml.NewDecoder(strings.NewReader(out.String())), 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				rects++
			}
		}
		require.Equal(t, len(spans), rects)
	}
}
