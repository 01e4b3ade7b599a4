#include "textflag.h"

// func pause(n int)
TEXT ·pause(SB), NOSPLIT, $0-8
	MOVD n+0(FP), R0

again:
	YIELD
	SUB  $1, R0
	CBNZ R0, again
	RET
