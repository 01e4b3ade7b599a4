// Package soak plays random scripts on random worlds and compares every byte.
//
// A script is made of a seed: which ranks are where and how they are joined, and what
// every rank does in how many goroutines. All ranks play the same script: collectives in all
// forms, several in flight on several groups, messages, one-sided transfers, gradient
// reducers, calls between streams, calls that are refused and groups that fail. Each result
// is compared with an answer that was computed apart, and so are the bytes around it.
//
// A script that fails is cut down to the steps that it takes. Its seed and those steps are
// printed and can be given again:
//
//	go test ./internal/soak                                     # some seconds
//	KOLO_SOAK=10m go test ./internal/soak -run Soak -timeout 0
//	KOLO_SOAK_SEED=4711 KOLO_SOAK_STEPS=3,17 go test ./internal/soak -run Soak
package soak
