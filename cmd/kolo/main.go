// Command kolo measures, checks and explains collectives, and starts the processes of a
// world.
//
//	kolo test all_reduce -p 8 -b 8 -e 64M -f 2 -d fp32 -o sum -c 1
//	kolo run -n 4 -- ./train
//	kolo run -n 4 -- kolo doctor
//	kolo plan simulate hier:mesh+nhr --network hccs:4x8 -b 25M
//
// It ends with 0 if all went well, with 1 if a run or a check has failed, and with 2
// if the command line was wrong.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // who asks twice does not wait for an orderly end
	a := &app{
		out: os.Stdout, err: os.Stderr, terminal: isTerminal(os.Stderr),
		getenv: os.Getenv, now: time.Now,
	}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// isTerminal says whether the file is a device that shows characters.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
