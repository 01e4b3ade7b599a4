package main

import (
	"fmt"
	"strings"
)

// Registers of the kernels on arm64. The accumulators are V0..V7, of which a half
// takes two for a vector of results; a source is loaded to V16..V23; V24..V27 are
// scratch.
const (
	armDsts  = "R0"
	armNdst  = "R1"
	armSrcs  = "R2"
	armMore  = "R3"
	armAt    = "R4"
	armEnd   = "R5"
	armLast  = "R6"
	armHere  = "R7"
	armNext  = "R8"
	armCount = "R9"
	armSpare = "R10"

	armLoaded   = 16
	armConstant = 28 // the upper halves of lanes, or the offset of an ordered kernel
	armMiddle   = 29 // 0x7fff in every lane (BF16)
	armOne      = 30 // 1 in every lane (BF16)
	armFactor   = 31
)

const neon = 16 // bytes of a vector

// arm64 writes kernels in the order of amd64's. Instructions that Go's assembler
// does not know are written as words with their text in GNU syntax beside.
type arm64 struct {
	text
	k kernel
}

func arm64File() string {
	var g arm64
	g.WriteString(header)
	g.line("//go:build !purego\n")
	g.line("#include \"textflag.h\"\n")
	g.entry()
	for _, k := range kernels() {
		g.k = k
		g.kernel()
	}
	g.line("")
	for i, k := range kernels() {
		g.line("DATA kernels<>+%d(SB)/8, $%s<>(SB)", 8*i, k.name())
	}
	g.line("GLOBL kernels<>(SB), RODATA, $%d", 8*len(kernels()))
	return g.String()
}

// entry writes the Go function that loads the arguments and jumps to a kernel.
func (g *arm64) entry() {
	g.line("// func spread(kernel int, dsts, srcs *[]byte, ndst, nsrc, from, to int, factor uint64)")
	g.line("TEXT ·spread(SB), NOSPLIT|NOFRAME, $0-64")
	for _, a := range []struct{ argument, register string }{
		{"factor+56", armSpare}, {"dsts+8", armDsts}, {"srcs+16", armSrcs}, {"ndst+24", armNdst}, {"nsrc+32", armMore}, {"from+40", armAt}, {"to+48", armEnd}, {"kernel+0", armHere},
	} {
		g.ins("MOVD", a.argument+"(FP)", a.register)
	}
	g.ins("SUB", "$1", armMore)
	g.ins("VDUP", armSpare, fmt.Sprintf("V%d.D2", armFactor))
	g.ins("MOVD", "$kernels<>(SB)", armNext)
	g.ins("MOVD", "("+armNext+")("+armHere+"<<3)", armNext)
	g.ins("JMP", "("+armNext+")")
}

// kernel writes two loops: over blocks of several vectors and over those left.
func (g *arm64) kernel() {
	g.line("\nTEXT %s<>(SB), NOSPLIT|NOFRAME, $0-0", g.k.name())
	switch {
	case g.k.ordered():
		g.broadcast(uint32(g.k.offset())*0x0001_0001, armConstant)
	case g.k.element.class == bfloat16:
		g.broadcast(0xffff0000, armConstant)
		g.broadcast(0x7fff, armMiddle)
		g.broadcast(1, armOne)
	}
	vectors := 8
	if g.k.half() {
		vectors = 4
	}
	g.loop("wide", vectors)
	g.loop("single", 1)
	g.ins("RET")
}

func (g *arm64) broadcast(value uint32, r int) {
	g.ins("MOVW", fmt.Sprintf("$0x%08x", value), armSpare)
	g.ins("VDUP", armSpare, fmt.Sprintf("V%d.S4", r))
}

// loop goes on while a block of some vectors fits.
func (g *arm64) loop(label string, vectors int) {
	size := fmt.Sprintf("$%d", vectors*neon)
	g.ins("SUB", size, armEnd, armLast)
	g.ins("CMP", armLast, armAt)
	g.ins("BGT", label+"Done")
	g.line("\n%s:", label)
	g.ins("MOVD", "("+armSrcs+")", armHere)
	g.ins("ADD", armAt, armHere)
	g.first(vectors)
	g.ins("MOVD", armMore, armCount)
	g.ins("CBZ", armCount, label+"Finish")
	g.ins("ADD", fmt.Sprintf("$%d", headers), armSrcs, armNext)
	g.slices(label+"Source", func() { g.fold(vectors) })
	g.line("\n%sFinish:", label)
	for v := range vectors {
		g.finish(v)
	}
	g.ins("MOVD", armDsts, armNext)
	g.ins("MOVD", armNdst, armCount)
	g.slices(label+"Store", func() { g.move("VST1", 0, vectors) })
	g.ins("ADD", size, armAt)
	g.ins("CMP", armLast, armAt)
	g.ins("BLE", label)
	g.line("\n%sDone:", label)
}

// slices writes a loop over count slices from next on.
func (g *arm64) slices(label string, body func()) {
	g.line("\n%s:", label)
	g.ins("MOVD", "("+armNext+")", armHere)
	g.ins("ADD", armAt, armHere)
	body()
	g.ins("ADD", fmt.Sprintf("$%d", headers), armNext)
	g.ins("SUB", "$1", armCount)
	g.ins("CBNZ", armCount, label)
}

// move loads or stores some registers in a row, from here on.
func (g *arm64) move(name string, from, vectors int) {
	for v := 0; v < vectors; v += 4 {
		n := min(vectors-v, 4)
		var rs []string
		for i := range n {
			rs = append(rs, bytes(from+v+i))
		}
		list, address := "["+strings.Join(rs, ", ")+"]", fmt.Sprintf("%d(%s)", n*neon, armHere)
		if name == "VLD1" {
			g.ins("VLD1.P", address, list)
		} else {
			g.ins("VST1.P", list, address)
		}
	}
}

func (g *arm64) accumulators(v int) []int {
	if g.k.half() {
		return []int{2 * v, 2*v + 1}
	}
	return []int{v}
}

// first sets the accumulators of all the vectors.
func (g *arm64) first(vectors int) {
	to := 0
	if g.k.half() {
		to = armLoaded
	}
	g.move("VLD1", to, vectors)
	for v := range vectors {
		g.prepare(to+v, g.accumulators(v))
	}
}

// fold adds all the vectors of a source to the accumulators.
func (g *arm64) fold(vectors int) {
	g.move("VLD1", armLoaded, vectors)
	for v := range vectors {
		accs := g.accumulators(v)
		prepared := []int{armLoaded + v}
		if g.k.half() {
			prepared = []int{24, 25}
		}
		g.prepare(armLoaded+v, prepared)
		for i, acc := range accs {
			g.combine(acc, prepared[i])
		}
	}
}

// prepare turns a loaded vector into what is computed with. That of other elements
// than halves stays in its register.
func (g *arm64) prepare(r int, to []int) {
	switch {
	case g.k.half() && g.k.element.class == float16: // the lower and the upper elements
		g.word(0x0e217800|r<<5|to[0], "fcvtl v%d.4s, v%d.4h", to[0], r)
		g.word(0x4e217800|r<<5|to[1], "fcvtl2 v%d.4s, v%d.8h", to[1], r)
	case g.k.half(): // the odd and the even elements
		g.ins("VAND", bytes(armConstant), bytes(r), bytes(to[0]))
		g.ins("VSHL", "$16", words(r), words(to[1]))
	case g.k.ordered():
		g.flip(r)
		g.ins("VADD", halves(armConstant), halves(r), halves(r))
	}
	if g.k.scalesSources() {
		for _, t := range to {
			g.arithmetic("prod", t, t, armFactor)
		}
	}
}

// flip flips all bits but the sign of negative 16-bit lanes; it is its own inverse.
func (g *arm64) flip(r int) {
	g.word(0x4f110400|r<<5|26, "sshr v26.8h, v%d.8h, #15", r)
	g.ins("VUSHR", "$1", halves(26), halves(26))
	g.ins("VEOR", bytes(26), bytes(r), bytes(r))
}

func bytes(r int) string   { return fmt.Sprintf("V%d.B16", r) }
func halves(r int) string  { return fmt.Sprintf("V%d.H8", r) }
func words(r int) string   { return fmt.Sprintf("V%d.S4", r) }
func doubles(r int) string { return fmt.Sprintf("V%d.D2", r) }

// word writes an instruction as its encoding.
func (g *arm64) word(code int, format string, args ...any) {
	g.line("\tWORD $0x%08x // %s", code, fmt.Sprintf(format, args...))
}

// threeSame is the encoding of an operation on three registers of one arrangement.
type threeSame struct {
	name            string
	u, size, opcode int
}

// arm64Single names the operations on lanes that are a single instruction. FMAX
// and FMIN propagate NaN and order the zeros.
var arm64Single = map[string]threeSame{
	"sum f4": {"fadd", 0, 0, 0b11010}, "sum f8": {"fadd", 0, 1, 0b11010},
	"prod f4": {"fmul", 1, 0, 0b11011}, "prod f8": {"fmul", 1, 1, 0b11011},
	"max f4": {"fmax", 0, 0, 0b11110}, "max f8": {"fmax", 0, 1, 0b11110},
	"min f4": {"fmin", 0, 2, 0b11110}, "min f8": {"fmin", 0, 3, 0b11110},
	"avg f4": {"fdiv", 1, 0, 0b11111}, "avg f8": {"fdiv", 1, 1, 0b11111},
	"sum i1": {"add", 0, 0, 0b10000}, "sum i2": {"add", 0, 1, 0b10000}, "sum i4": {"add", 0, 2, 0b10000}, "sum i8": {"add", 0, 3, 0b10000},
	"prod i1": {"mul", 0, 0, 0b10011}, "prod i2": {"mul", 0, 1, 0b10011}, "prod i4": {"mul", 0, 2, 0b10011},
	"max i1": {"smax", 0, 0, 0b01100}, "max i2": {"smax", 0, 1, 0b01100}, "max i4": {"smax", 0, 2, 0b01100},
	"min i1": {"smin", 0, 0, 0b01101}, "min i2": {"smin", 0, 1, 0b01101}, "min i4": {"smin", 0, 2, 0b01101},
	"max u1": {"umax", 1, 0, 0b01100}, "max u2": {"umax", 1, 1, 0b01100}, "max u4": {"umax", 1, 2, 0b01100},
	"min u1": {"umin", 1, 0, 0b01101}, "min u2": {"umin", 1, 1, 0b01101}, "min u4": {"umin", 1, 2, 0b01101},
}

// arithmetic writes d = n op m, in one instruction.
func (g *arm64) arithmetic(op string, d, n, m int) {
	lanes := g.k.lanes()
	s, ok := arm64Single[op+" "+lanes]
	if !ok {
		panic("gen: no instruction for " + op + " in " + g.k.name())
	}
	g.three(s, map[byte]string{'1': "16b", '2': "8h", '4': "4s", '8': "2d"}[lanes[1]], d, n, m)
}

func (g *arm64) three(s threeSame, lanes string, d, n, m int) {
	g.word(0x4e200400|s.u<<29|s.size<<22|m<<16|s.opcode<<11|n<<5|d, "%s v%d.%s, v%d.%s, v%d.%s", s.name, d, lanes, n, lanes, m, lanes)
}

// combine writes acc = acc op r, with V24 and on as scratch where r is no half.
func (g *arm64) combine(acc, r int) {
	o := g.k.op
	switch {
	case g.k.element.integer() && g.k.element.size == 8 && o.compares():
		g.compare64(acc, r)
	case g.k.element.integer() && o.fold == "prod":
		g.product(acc, r)
	default:
		g.arithmetic(o.fold, acc, acc, r)
	}
}

// compare64 is max or min of 64-bit integers.
func (g *arm64) compare64(acc, r int) {
	greater := threeSame{"cmgt", 0, 3, 0b00110}
	if g.k.element.class == unsigned {
		greater = threeSame{"cmhi", 1, 3, 0b00110}
	}
	g.three(greater, "2d", 24, acc, r)
	if g.k.op.fold == "min" {
		g.ins("VBIT", bytes(24), bytes(r), bytes(acc)) // r where acc is greater
	} else {
		g.ins("VBIF", bytes(24), bytes(r), bytes(acc)) // r where it is not
	}
}

// product is that of integers. Of 64 bits it is low*low + (the sum of low*high and
// high*low)<<32.
func (g *arm64) product(acc, r int) {
	if g.k.element.size != 8 {
		g.arithmetic("prod", acc, acc, r)
		return
	}
	g.word(0x4ea00800|r<<5|24, "rev64 v24.4s, v%d.4s", r)
	g.three(threeSame{"mul", 0, 2, 0b10011}, "4s", 24, 24, acc)
	g.word(0x6ea02800|24<<5|24, "uaddlp v24.2d, v24.4s")
	g.ins("VSHL", "$32", doubles(24), doubles(24))
	g.word(0x0ea12800|acc<<5|25, "xtn v25.2s, v%d.2d", acc)
	g.word(0x0ea12800|r<<5|26, "xtn v26.2s, v%d.2d", r)
	g.word(0x2ea08000|26<<16|25<<5|24, "umlal v24.2d, v25.2s, v26.2s")
	g.ins("VORR", bytes(24), bytes(24), bytes(acc))
}

// finish turns the accumulators of vector v into the result, in V(v).
func (g *arm64) finish(v int) {
	accs := g.accumulators(v)
	if final := g.k.final(); final != "" {
		for _, acc := range accs {
			g.arithmetic(final, acc, acc, armFactor)
		}
	}
	switch {
	case g.k.ordered():
		g.ins("VSUB", halves(armConstant), halves(v), halves(v))
		g.flip(v)
	case g.k.half() && g.k.element.class == float16: // to nearest even
		g.word(0x0e216800|accs[0]<<5|v, "fcvtn v%d.4h, v%d.4s", v, accs[0])
		g.word(0x4e216800|accs[1]<<5|v, "fcvtn2 v%d.8h, v%d.4s", v, accs[1])
	case g.k.half():
		g.roundBFloat16(accs[0])
		g.roundBFloat16(accs[1])
		g.ins("VSRI", "$16", words(accs[1]), words(accs[0]))
		g.ins("VORR", bytes(accs[0]), bytes(accs[0]), bytes(v))
	case g.k.scalesResult():
		g.product(v, armFactor)
	}
}

// roundBFloat16 is that of amd64.
func (g *arm64) roundBFloat16(acc int) {
	g.ins("VUSHR", "$16", words(acc), words(24))
	g.ins("VAND", bytes(armOne), bytes(24), bytes(24))
	g.ins("VADD", words(armMiddle), words(24), words(24))
	g.ins("VADD", words(24), words(acc), words(acc))
}
