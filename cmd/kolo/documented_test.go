package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// Every command line that the help texts, README.md and docs show is understood.
func TestDocumentedCommandLines(t *testing.T) {
	var lines []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			lines = append(lines, strings.TrimSpace(line))
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{out: io.Discard, err: io.Discard}).command())
	require.Greater(t, len(lines), 20)
	shown := regexp.MustCompile("(?m)^ {4}(go run ./cmd/kolo .*)$|`((?:go run ./cmd/kolo|kolo) [^`]*)`")
	for _, file := range []string{"../../README.md", "../../docs/clusters.md", "../../docs/performance.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range shown.FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, strings.Replace(m[1]+m[2], "go run ./cmd/kolo", "kolo", 1))
		}
	}
	for _, line := range lines {
		parse(t, line, strings.Fields(line))
	}
}

// parse reads a command line and, of kolo run, the one that it starts.
func parse(t *testing.T, line string, words []string) {
	if len(words) == 0 || words[0] != "kolo" {
		return // a program of the user's
	}
	if i := slices.Index(words, "--"); i >= 0 {
		parse(t, line, words[i+1:])
	}
	root := (&app{out: io.Discard, err: io.Discard}).command()
	cmd, rest, err := root.Find(words[1:])
	require.NoError(t, err, line)
	if slices.Contains(words, "--help") {
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %v", line, err)
		return
	}
	if cmd.HasSubCommands() && cmd.Flags().NArg() == 0 {
		return // a mention of the whole command
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil && cmd.Flags().NArg() > 0 {
		t.Errorf("%s: %v", line, err)
	}
}
