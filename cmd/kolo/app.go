package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/launch"
)

// app is what the commands have of the world around them.
type app struct {
	out, err io.Writer
	terminal bool // err shows progress
	getenv   func(string) string
	now      func() time.Time

	tamper func(r kolo.Rank, out []byte) // tests change results with it
}

// The codes with which the process ends.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error of the command line.
type usageError struct {
	err     error
	command string // whose help tells more
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\nsee %s --help", e.err, e.command)
}

func (e *usageError) Unwrap() error { return e.err }

// run does what the command line says and returns the code to end with.
func (a *app) run(ctx context.Context, args []string) int {
	cmd := a.command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(a.err, "kolo: %s\n", strings.TrimPrefix(err.Error(), "kolo: ")) // if stderr is gone, the code is all there is
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return exitUsage
	}
	if f := (*launch.Failure)(nil); errors.As(err, &f) {
		return f.Code
	}
	return exitFailed
}

// command is the whole tree of commands.
func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kolo",
		Short:         "Measure, check and explain collectives",
		Long:          "kolo measures, checks and explains the collectives of this module, and starts the processes of a world.",
		Example:       "  kolo test all_reduce -p 8 -b 8 -e 64M -f 2\n  kolo test alltoall --help",
		Version:       version(),
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("kolo {{.Version}}\n")
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{err, cmd.CommandPath()} })
	root.AddCommand(a.testCommand(), a.runCommand(), a.planCommand(), a.topoCommand(), a.doctorCommand())
	return root
}

// noSuchCommand refuses words that a command with commands does not know.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("%q is nothing that %s can do", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return &usageError{errors.New(text), cmd.CommandPath()}
}

// version is the module's version with the commit, if the build knows it, and what
// it was built with.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
				v += " " + s.Value
			}
		}
	}
	return fmt.Sprintf("%s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
