package main

import (
	"fmt"
	"strings"
)

// Registers of the kernels on amd64. The accumulators are Y0..Y7, of which a half
// takes two for a vector of results; Y8..Y12 are scratch.
const (
	dsts  = "DI"  // the slice headers of the destinations
	ndst  = "R8"  // how many
	srcs  = "SI"  // the slice headers of the sources
	more  = "R9"  // how many after the first
	at    = "AX"  // offset of the block
	end   = "BX"  // offset at which to stop
	last  = "CX"  // the last offset at which the loop goes on
	here  = "R10" // address of the block in one slice
	next  = "R11" // the slice header after that
	count = "R12" // slices left

	factor   = "Y13" // divisor or factor, in every lane
	constant = "Y14" // what constantOf says
	lanes    = "Y7"  // the lanes that exist, in the last part of a vector
)

const (
	ymm     = 32 // bytes of a vector
	headers = 24 // bytes of a slice header
)

type amd64 struct {
	text
	k    kernel
	part bool // the loop is over the lanes of a part of a vector
}

func amd64File() string {
	var g amd64
	g.WriteString(header)
	g.line("//go:build !purego\n")
	g.line("#include \"textflag.h\"\n")
	g.entry()
	for _, k := range kernels() {
		g.k = k
		g.kernel()
	}
	g.tables()
	return g.String()
}

// entry writes the Go function that loads the arguments and jumps to a kernel.
func (g *amd64) entry() {
	g.line("// func spread(kernel int, dsts, srcs *[]byte, ndst, nsrc, from, to int, factor uint64)")
	g.line("TEXT ·spread(SB), NOSPLIT|NOFRAME, $0-64")
	for _, a := range []struct{ argument, register string }{
		{"dsts+8", dsts}, {"srcs+16", srcs}, {"ndst+24", ndst}, {"nsrc+32", more}, {"from+40", at}, {"to+48", end}, {"kernel+0", here},
	} {
		g.ins("MOVQ", a.argument+"(FP)", a.register)
	}
	g.ins("DECQ", more)
	g.ins("VPBROADCASTQ", "factor+56(FP)", factor)
	g.ins("LEAQ", "kernels<>(SB)", next)
	g.ins("JMP", "("+next+")("+here+"*8)")
}

// tables writes the constants, the masks of the first lanes, and the addresses of
// the kernels.
func (g *amd64) tables() {
	written := map[string]bool{}
	constant := func(name string, value uint64) {
		if name == "" || written[name] {
			return
		}
		written[name] = true
		g.line("")
		for i := 0; i < ymm; i += 8 {
			g.line("DATA %s<>+%d(SB)/8, $0x%016x", name, i, value)
		}
		g.line("GLOBL %s<>(SB), RODATA|NOPTR, $%d", name, ymm)
	}
	for _, k := range kernels() {
		constant(k.constantOf())
	}
	constant("one", 0x00000001_00000001)
	constant("middle", 0x00007fff_00007fff)
	g.line("")
	for i := 0; i < ymm; i += 8 {
		g.line("DATA lanes<>+%d(SB)/8, $-1", i)
	}
	g.line("GLOBL lanes<>(SB), RODATA|NOPTR, $%d\n", 2*ymm)
	for i, k := range kernels() {
		g.line("DATA kernels<>+%d(SB)/8, $%s<>(SB)", 8*i, k.name())
	}
	g.line("GLOBL kernels<>(SB), RODATA, $%d", 8*len(kernels()))
}

// constantOf is the constant that a kernel holds in a register, or no name.
func (k kernel) constantOf() (name string, value uint64) {
	switch {
	case k.ordered():
		return "offset" + k.name(), uint64(k.offset()) * 0x0001_0001_0001_0001
	case k.element.class == bfloat16:
		return "upper", 0xffff0000_ffff0000
	case k.element.size == 1 && (k.op.fold == "prod" || k.scalesResult()):
		return "even", 0x00ff_00ff_00ff_00ff
	case k.element.class == unsigned && k.element.size == 8:
		return "sign", 1 << 63
	}
	return "", 0
}

// kernel writes three loops: over blocks of several vectors, over the vectors that
// are left, and, run once, over the lanes of 4 bytes that are left.
func (g *amd64) kernel() {
	g.line("\nTEXT %s<>(SB), NOSPLIT|NOFRAME, $0-0", g.k.name())
	if name, _ := g.k.constantOf(); name != "" {
		g.ins("VMOVDQU", name+"<>(SB)", constant)
	}
	vectors := 8
	if g.k.half() {
		vectors = 4
	}
	g.loop("wide", vectors)
	g.loop("single", 1)
	g.ins("SUBQ", at, end)
	g.ins("JEQ", "done")
	g.ins("LEAQ", fmt.Sprintf("lanes<>+%d(SB)", ymm), here)
	g.ins("SUBQ", end, here)
	g.ins("VMOVDQU", "("+here+")", lanes)
	g.part = true
	g.body("part", 1)
	g.part = false
	g.line("\ndone:")
	g.ins("VZEROUPPER")
	g.ins("RET")
}

// loop goes on while a block of some vectors fits.
func (g *amd64) loop(label string, vectors int) {
	g.ins("LEAQ", fmt.Sprintf("-%d(%s)", vectors*ymm, end), last)
	g.ins("CMPQ", at, last)
	g.ins("JGT", label+"Done")
	g.line("\n%s:", label)
	g.body(label, vectors)
	g.ins("ADDQ", fmt.Sprintf("$%d", vectors*ymm), at)
	g.ins("CMPQ", at, last)
	g.ins("JLE", label)
	g.line("\n%sDone:", label)
}

// body does one block.
func (g *amd64) body(label string, vectors int) {
	g.ins("MOVQ", "("+srcs+")", here)
	g.ins("ADDQ", at, here)
	for v := range vectors {
		g.first(v)
	}
	g.ins("MOVQ", more, count)
	g.ins("TESTQ", count, count)
	g.ins("JEQ", label+"Finish")
	g.ins("LEAQ", fmt.Sprintf("%d(%s)", headers, srcs), next)
	g.slices(label+"Source", vectors, g.fold)
	g.line("\n%sFinish:", label)
	for v := range vectors {
		g.finish(v)
	}
	g.ins("MOVQ", dsts, next)
	g.ins("MOVQ", ndst, count)
	g.slices(label+"Store", vectors, g.store)
}

// slices writes a loop over count slices from next on.
func (g *amd64) slices(label string, vectors int, body func(v int)) {
	g.line("\n%s:", label)
	g.ins("MOVQ", "("+next+")", here)
	g.ins("ADDQ", at, here)
	for v := range vectors {
		body(v)
	}
	g.ins("ADDQ", fmt.Sprintf("$%d", headers), next)
	g.ins("DECQ", count)
	g.ins("JNE", label)
}

func y(i int) string { return fmt.Sprintf("Y%d", i) }
func x(i int) string { return fmt.Sprintf("X%d", i) }

func memory(offset int) string { return fmt.Sprintf("%d(%s)", offset, here) }

// accumulators are the registers of vector v. The first gets the result.
func (g *amd64) accumulators(v int) []int {
	if g.k.half() {
		return []int{2 * v, 2*v + 1}
	}
	return []int{v}
}

// first sets the accumulators of vector v.
func (g *amd64) first(v int) {
	g.load(v, g.accumulators(v))
}

// fold adds vector v of a source to the accumulators.
func (g *amd64) fold(v int) {
	accs := g.accumulators(v)
	if name, ok := amd64Single[g.k.op.fold+" "+g.k.lanes()]; ok && g.direct() {
		g.ins(name, memory(v*ymm), y(accs[0]), y(accs[0]))
		return
	}
	loaded := []int{8, 9}[:len(accs)]
	g.load(v, loaded)
	for i, acc := range accs {
		g.combine(acc, loaded[i])
	}
}

// direct says whether lanes are folded as they are in memory.
func (g *amd64) direct() bool {
	return !g.part && !g.k.half() && !g.k.ordered() && !g.k.scalesSources()
}

// load reads vector v of a source, into two registers if it is a half: those of
// F16 hold the lower and the upper elements, those of BF16 the odd and the even
// ones.
func (g *amd64) load(v int, to []int) {
	switch {
	case g.k.half() && g.k.element.class == float16 && g.part:
		g.fetch(v, to[0])
		g.ins("VEXTRACTI128", "$1", y(to[0]), x(to[1]))
		g.ins("VCVTPH2PS", x(to[1]), y(to[1]))
		g.ins("VCVTPH2PS", x(to[0]), y(to[0]))
	case g.k.half() && g.k.element.class == float16:
		g.ins("VCVTPH2PS", memory(v*ymm), y(to[0]))
		g.ins("VCVTPH2PS", memory(v*ymm+ymm/2), y(to[1]))
	case g.k.half():
		g.fetch(v, to[1])
		g.ins("VPAND", constant, y(to[1]), y(to[0]))
		g.ins("VPSLLD", "$16", y(to[1]), y(to[1]))
	case g.k.ordered():
		g.fetch(v, to[0])
		g.flip(to[0])
		g.ins("VPADDW", constant, y(to[0]), y(to[0]))
	default:
		g.fetch(v, to[0])
	}
	if g.k.scalesSources() {
		for _, r := range to {
			g.arithmetic("prod", r, factor)
		}
	}
}

func (g *amd64) fetch(v, to int) {
	if g.part {
		g.ins("VPMASKMOVD", memory(0), lanes, y(to))
		return
	}
	g.ins("VMOVDQU", memory(v*ymm), y(to))
}

func (g *amd64) store(v int) {
	if g.part {
		g.ins("VPMASKMOVD", y(0), lanes, memory(0))
		return
	}
	g.ins("VMOVDQU", y(g.accumulators(v)[0]), memory(v*ymm))
}

// flip flips all bits but the sign of negative 16-bit lanes; it is its own inverse.
func (g *amd64) flip(r int) {
	g.ins("VPSRAW", "$15", y(r), "Y10")
	g.ins("VPSRLW", "$1", "Y10", "Y10")
	g.ins("VPXOR", "Y10", y(r), y(r))
}

// amd64Single names the operations on lanes that are a single instruction.
var amd64Single = map[string]string{
	"sum f4": "VADDPS", "sum f8": "VADDPD",
	"prod f4": "VMULPS", "prod f8": "VMULPD",
	"avg f4": "VDIVPS", "avg f8": "VDIVPD",
	"sum i1": "VPADDB", "sum i2": "VPADDW", "sum i4": "VPADDD", "sum i8": "VPADDQ",
	"prod i2": "VPMULLW", "prod i4": "VPMULLD",
	"max i1": "VPMAXSB", "max i2": "VPMAXSW", "max i4": "VPMAXSD",
	"min i1": "VPMINSB", "min i2": "VPMINSW", "min i4": "VPMINSD",
	"max u1": "VPMAXUB", "max u2": "VPMAXUW", "max u4": "VPMAXUD",
	"min u1": "VPMINUB", "min u2": "VPMINUW", "min u4": "VPMINUD",
}

// arithmetic writes acc = acc op operand, in one instruction.
func (g *amd64) arithmetic(op string, acc int, operand string) {
	name, ok := amd64Single[op+" "+g.k.lanes()]
	if !ok {
		panic("gen: no instruction for " + op + " in " + g.k.name())
	}
	g.ins(name, operand, y(acc), y(acc))
}

// combine writes acc = acc op r, in as many instructions as it takes, with
// Y10..Y12 as scratch, and Y9 where r is Y8 and no half.
func (g *amd64) combine(acc, r int) {
	lanes, o := g.k.lanes(), g.k.op
	switch {
	case o.compares() && strings.HasPrefix(lanes, "f"):
		g.compareFloats(acc, r)
	case o.compares() && strings.HasSuffix(lanes, "8"):
		g.compare64(acc, r)
	case o.fold == "prod" && g.k.element.integer():
		g.product(acc, y(r))
	default:
		g.arithmetic(o.fold, acc, y(r))
	}
}

// compareFloats is max or min. The instruction gives its second operand where one
// is NaN or both are zeros: done both ways round, the two results differ only
// there. OR makes the zero of a minimum negative if one was, AND that of a maximum
// positive; then all bits are set where a NaN was.
func (g *amd64) compareFloats(acc, r int) {
	suffix, join := "PS", "VORPS"
	if g.k.lanes() == "f8" {
		suffix = "PD"
	}
	name := "VMIN" + suffix
	if g.k.op.fold == "max" {
		name, join = "VMAX"+suffix, "VANDPS"
	}
	g.ins(name, y(r), y(acc), "Y10")
	g.ins(name, y(acc), y(r), "Y11")
	g.ins("VCMP"+suffix, "$3", y(r), y(acc), "Y12") // unordered
	g.ins(join, "Y11", "Y10", "Y10")
	g.ins("VORPS", "Y12", "Y10", y(acc))
}

// compare64 is max or min of 64-bit integers; the comparison is a signed one.
func (g *amd64) compare64(acc, r int) {
	a, b := acc, r
	if g.k.element.class == unsigned {
		a, b = 9, 10
		g.ins("VPXOR", constant, y(acc), y(a))
		g.ins("VPXOR", constant, y(r), y(b))
	}
	g.ins("VPCMPGTQ", y(b), y(a), "Y11") // acc > r
	if g.k.op.fold == "min" {
		g.ins("VBLENDVPD", "Y11", y(r), y(acc), y(acc))
	} else {
		g.ins("VBLENDVPD", "Y11", y(acc), y(r), y(acc))
	}
}

// product is that of integers.
func (g *amd64) product(acc int, operand string) {
	switch g.k.element.size {
	case 1:
		g.product8(acc, operand)
	case 8:
		g.product64(acc, operand)
	default:
		g.arithmetic("prod", acc, operand)
	}
}

// product8 multiplies even and odd bytes separately, as 16-bit lanes.
func (g *amd64) product8(acc int, operand string) {
	g.ins("VPMULLW", operand, y(acc), "Y9")
	g.ins("VPAND", constant, "Y9", "Y9")
	g.ins("VPSRLW", "$8", operand, "Y10")
	g.ins("VPSRLW", "$8", y(acc), "Y11")
	g.ins("VPMULLW", "Y10", "Y11", "Y11")
	g.ins("VPSLLW", "$8", "Y11", "Y11")
	g.ins("VPOR", "Y9", "Y11", y(acc))
}

// product64 is low*low + (high*low + low*high)<<32.
func (g *amd64) product64(acc int, operand string) {
	g.ins("VPSRLQ", "$32", y(acc), "Y9")
	g.ins("VPSRLQ", "$32", operand, "Y10")
	g.ins("VPMULUDQ", operand, "Y9", "Y9")
	g.ins("VPMULUDQ", "Y10", y(acc), "Y10")
	g.ins("VPADDQ", "Y10", "Y9", "Y9")
	g.ins("VPSLLQ", "$32", "Y9", "Y9")
	g.ins("VPMULUDQ", operand, y(acc), "Y10")
	g.ins("VPADDQ", "Y10", "Y9", y(acc))
}

// finish turns the accumulators of vector v into the result, in the first.
func (g *amd64) finish(v int) {
	accs := g.accumulators(v)
	if final := g.k.final(); final != "" {
		for _, acc := range accs {
			g.arithmetic(final, acc, factor)
		}
	}
	switch {
	case g.k.ordered():
		g.ins("VPSUBW", constant, y(accs[0]), y(accs[0]))
		g.flip(accs[0])
	case g.k.half() && g.k.element.class == float16:
		for _, acc := range accs {
			g.ins("VCVTPS2PH", "$0", y(acc), x(acc)) // to nearest even
		}
		g.ins("VINSERTI128", "$1", x(accs[1]), y(accs[0]), y(accs[0]))
	case g.k.half():
		g.roundBFloat16(accs[0])
		g.roundBFloat16(accs[1])
		g.ins("VPSRLD", "$16", y(accs[1]), y(accs[1]))
		g.ins("VPBLENDW", "$0xaa", y(accs[0]), y(accs[1]), y(accs[0]))
	case g.k.scalesResult():
		g.product(accs[0], factor)
	}
}

// roundBFloat16 rounds each float32 to its upper half, to nearest even: it adds
// what is just short of half of the last place that stays, and one more if that
// place is odd. The lower half is left as it comes. A NaN needs no care: that of a
// widened BFloat16, or one that the processor makes, has a lower half of zeros,
// from which nothing carries.
func (g *amd64) roundBFloat16(acc int) {
	g.ins("VPSRLD", "$16", y(acc), "Y8")
	g.ins("VPAND", "one<>(SB)", "Y8", "Y8")
	g.ins("VPADDD", "middle<>(SB)", "Y8", "Y8")
	g.ins("VPADDD", "Y8", y(acc), y(acc))
}
