package trace_test

import (
	"os"
	"time"

	"github.com/kolo-ccl/kolo/trace"
)

func ExampleWriteTrace() {
	spans := []trace.Span{
		{Lane: "rank 0", Name: "send", Bytes: 1024, Begin: 0, End: 2 * time.Microsecond},
		{Lane: "rank 1", Name: "reduce", Bytes: 1024, Begin: 2 * time.Microsecond, End: 3 * time.Microsecond},
	}
	if err := trace.WriteTrace(os.Stdout, spans); err != nil {
		panic(err)
	}
	// Output:
	// {"traceEvents":[{"name":"thread_name","ph":"M","pid":0,"tid":0,"ts":0,"args":{"name":"rank 0"}},{"name":"thread_name","ph":"M","pid":0,"tid":1,"ts":0,"args":{"name":"rank 1"}},{"name":"send","ph":"X","pid":0,"tid":0,"ts":0,"dur":2,"args":{"bytes":1024}},{"name":"reduce","ph":"X","pid":0,"tid":1,"ts":2,"dur":1,"args":{"bytes":1024}}]}
}
