package schedule

import "fmt"

// GOAL is the schedule as GOAL (Hoefler, Siebert and Lumsdaine, "Group operation
// assembly language", 2009), in the words that LogGOPSim's txt2bin reads:
//
//	num_ranks 2
//
//	rank 0 {
//	l0: send 512b to 1 tag 0
//	l1: recv 512b from 1 tag 0
//	l2: calc 64 cpu 1
//	l2 requires l1
//	}
//
// What folds and copies has a processor of its own, cpu 1, as Simulate has it; the times of
// calc are nanoseconds. "requires" is for an end, "irequires" for a begin.
func (s Schedule) GOAL() []byte {
	w := fmt.Appendf(nil, "num_ranks %d\n", len(s))
	for r, ops := range s {
		w = fmt.Appendf(w, "\nrank %d {\n", r)
		for i, op := range ops {
			switch op.Kind {
			case Send:
				w = fmt.Appendf(w, "l%d: send %db to %d tag %d\n", i, op.Size, int(op.Peer), op.Tag)
			case Recv:
				w = fmt.Appendf(w, "l%d: recv %db from %d tag %d\n", i, op.Size, int(op.Peer), op.Tag)
			default:
				w = fmt.Appendf(w, "l%d: calc %d cpu 1\n", i, op.Nanos)
			}
			for _, a := range op.After {
				w = fmt.Appendf(w, "l%d requires l%d\n", i, a)
			}
			for _, a := range op.Behind {
				w = fmt.Appendf(w, "l%d irequires l%d\n", i, a)
			}
		}
		w = append(w, "}\n"...)
	}
	return w
}
