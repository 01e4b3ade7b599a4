package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the generator writes: run go generate ./internal/kernel", name)
		}
	}
}

// An instruction of SSE among those of AVX stalls for the upper halves of the
// registers: whatever names a vector register must begin with V.
func TestNoLegacySSEInstruction(t *testing.T) {
	vector := regexp.MustCompile(`\b[XYZ][0-9]+\b`)
	seen := 0
	for line := range strings.Lines(amd64File()) {
		if vector.MatchString(line) {
			seen++
			if !strings.HasPrefix(strings.TrimSpace(line), "V") {
				t.Errorf("not a VEX instruction: %s", line)
			}
		}
	}
	if seen < 1000 {
		t.Fatalf("only %d vector instructions found", seen)
	}
	if n, m := strings.Count(amd64File(), "\tVZEROUPPER"), len(kernels()); n != m {
		t.Fatalf("%d kernels, %d times VZEROUPPER", m, n)
	}
}

// Fused instructions round once where the contract rounds twice.
func TestNoFusedMultiplyAdd(t *testing.T) {
	for _, text := range []string{amd64File(), arm64File()} {
		if fused := regexp.MustCompile(`(?i)\b(VFN?M(ADD|SUB)|fml[as])\w*`).FindString(text); fused != "" {
			t.Errorf("found %s", fused)
		}
	}
}

func TestKernelsHaveDifferentNames(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range kernels() {
		if seen[k.name()] {
			t.Errorf("two kernels %s", k.name())
		}
		seen[k.name()] = true
	}
	for _, e := range elements {
		for _, o := range ops {
			if n := (kernel{e, o}).number(); n < 0 || n >= len(seen) {
				t.Errorf("no kernel for %s of %s", o.name, e.name)
			}
		}
	}
}

// The words of arm64 instructions are what GNU's assembler makes of the text beside.
func TestWordsOfARM64AreTheirInstructions(t *testing.T) {
	const as, objcopy = "aarch64-linux-gnu-as", "aarch64-linux-gnu-objcopy"
	if _, err := exec.LookPath(as); err != nil {
		t.Skipf("no %s here: apt-get install binutils-aarch64-linux-gnu", as)
	}
	var source strings.Builder
	var words []string
	for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(arm64File(), -1) {
		words = append(words, m[1])
		source.WriteString(m[2] + "\n")
	}
	object, code := filepath.Join(t.TempDir(), "k.o"), filepath.Join(t.TempDir(), "k.bin")
	run := func(stdin string, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	run(source.String(), as, "-o", object, "-")
	run("", objcopy, "-O", "binary", "-j", ".text", object, code)
	b, err := os.ReadFile(code)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 4*len(words) || len(words) == 0 {
		t.Fatalf("%d words became %d bytes", len(words), len(b))
	}
	lines := strings.Split(source.String(), "\n")
	for i, w := range words {
		if got := fmt.Sprintf("%08x", binary.LittleEndian.Uint32(b[4*i:])); got != w {
			t.Errorf("%s is %s, not %s", lines[i], got, w)
		}
	}
}
