package msccl

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// XML writes the file as MSCCL's compiler does. Read makes the same File of it.
func (f *File) XML() []byte {
	var b bytes.Buffer
	bit := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	fmt.Fprintf(&b, `<algo name="%s" proto="%s" nchannels="%d" nchunksperloop="%d" ngpus="%d" coll="%s"`,
		escape(f.Name), escape(f.Protocol), f.Channels, f.Chunks, len(f.GPUs), collectiveName(f.Collective))
	if f.Root != 0 {
		fmt.Fprintf(&b, ` root="%d"`, int(f.Root))
	}
	fmt.Fprintf(&b, ` inplace="%d" outofplace="%d" minBytes="%d" maxBytes="%d">`+"\n", bit(f.InPlace), bit(f.OutOfPlace), f.MinBytes, f.MaxBytes)
	for i, g := range f.GPUs {
		fmt.Fprintf(&b, `  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">`+"\n", i, g.In, g.Out, g.Scratch)
		for k, t := range g.Blocks {
			fmt.Fprintf(&b, `    <tb id="%d" send="%d" recv="%d" chan="%d">`+"\n", k, int(t.Send), int(t.Recv), t.Channel)
			for n, s := range t.Steps {
				fmt.Fprintf(&b, `      <step s="%d" type="%v" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d" depid="%d" deps="%d" hasdep="%d"/>`+"\n",
					n, s.Op, s.Src.letter(), s.Src.Offset, s.Dst.letter(), s.Dst.Offset, s.Count, s.DepBlock, s.DepStep, bit(s.HasDep))
			}
			b.WriteString("    </tb>\n")
		}
		b.WriteString("  </gpu>\n")
	}
	b.WriteString("</algo>\n")
	return b.Bytes()
}

// letter is MSCCL's name of the buffer: i, o or s.
func (p Place) letter() string { return p.Buffer.String()[:1] }

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a bytes.Buffer takes everything
	return b.String()
}
