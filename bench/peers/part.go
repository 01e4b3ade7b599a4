package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// goParts are the programs that are this one, started with "part" and a name.
var goParts = map[string]func(ctx context.Context, j job, w io.Writer) error{
	"kolo":   koloPart,
	"member": memberPart,
	"plain":  plainPart,
}

// runPart is main in a process that another of this program has started.
func runPart(ctx context.Context, name string, args []string) error {
	if name == "busy" {
		return spin(ctx)
	}
	f, ok := goParts[name]
	if !ok {
		return fmt.Errorf("no part %q", name)
	}
	j, err := parseJob(args)
	if err != nil {
		return err
	}
	return f(ctx, j, os.Stdout)
}

// spin keeps a core busy until it is told to end.
func spin(ctx context.Context) error {
	for x := uint64(1); ctx.Err() == nil; {
		x = work(x, 1<<20)
	}
	return nil
}

// part is a program that can run here.
type part struct {
	name    string
	command func(j job) []string
}
