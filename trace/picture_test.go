package trace_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/trace"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

var drawn = []trace.Span{
	{Lane: "npu0/compute", Name: "mat<mul>", Begin: ms, End: 3 * ms},
	{Lane: "hccs 0>1", Name: "copy", Bytes: 56, Begin: 2 * ms, End: 2*ms + 500},
	{Lane: "npu0/compute", Name: "mat<mul>", Begin: 3 * ms, End: 5 * ms},
}

func TestTraceIsWhatViewersRead(t *testing.T) {
	var out strings.Builder
	require.NoError(t, trace.WriteTrace(&out, drawn))
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
	for _, spans := range [][]trace.Span{nil, drawn} {
		var out strings.Builder
		require.NoError(t, trace.WriteSVG(&out, spans))
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
