//go:build !purego

#include "textflag.h"

// func stream(dst, src *byte, n int)
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

	// 256 bytes at a time
	SUBQ $256, CX
	JLT  rest

four:
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVDQU  128(SI), Y4
	VMOVDQU  160(SI), Y5
	VMOVDQU  192(SI), Y6
	VMOVDQU  224(SI), Y7
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	VMOVNTDQ Y4, 128(DI)
	VMOVNTDQ Y5, 160(DI)
	VMOVNTDQ Y6, 192(DI)
	VMOVNTDQ Y7, 224(DI)
	ADDQ     $256, SI
	ADDQ     $256, DI
	SUBQ     $256, CX
	JGE      four

rest:
	ADDQ $256, CX
	JZ   end

one:
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	ADDQ     $64, SI
	ADDQ     $64, DI
	SUBQ     $64, CX
	JNZ      one

end:
	SFENCE
	VZEROUPPER
	RET
