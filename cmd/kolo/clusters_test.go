package main

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// manifest is what of examples/kubernetes must fit together. Other fields are allowed.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		ClusterIP      string `yaml:"clusterIP"`
		NotReady       bool   `yaml:"publishNotReadyAddresses"`
		Selector       map[string]string
		Ports          []struct{ Port int }
		CompletionMode string `yaml:"completionMode"`
		Completions    int
		Parallelism    int
		BackoffLimit   *int `yaml:"backoffLimit"`
		Template       struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Subdomain     string
				RestartPolicy string `yaml:"restartPolicy"`
				Containers    []struct {
					Image   string
					Command []string
					Env     []struct {
						Name, Value string
						From        struct {
							Field struct {
								Path string `yaml:"fieldPath"`
							} `yaml:"fieldRef"`
						} `yaml:"valueFrom"`
					}
				}
			}
		}
	}
}

func TestKubernetesManifest(t *testing.T) {
	file, err := os.Open("../../examples/kubernetes/world.yaml")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	of := map[string]manifest{}
	for d := yaml.NewDecoder(file); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		of[m.APIVersion+" "+m.Kind] = m
	}
	require.Len(t, of, 2)
	service, job := of["v1 Service"], of["batch/v1 Job"]
	require.Equal(t, "None", service.Spec.ClusterIP, "it is headless")
	require.True(t, service.Spec.NotReady, "processes find each other before they are ready")
	require.Equal(t, service.Spec.Selector, job.Spec.Template.Metadata.Labels)
	require.Equal(t, service.Metadata.Name, job.Spec.Template.Spec.Subdomain)
	require.Equal(t, "Indexed", job.Spec.CompletionMode)
	require.Equal(t, job.Spec.Completions, job.Spec.Parallelism, "all ranks run at once")
	require.Zero(t, *job.Spec.BackoffLimit)
	require.Equal(t, "Never", job.Spec.Template.Spec.RestartPolicy)

	c := job.Spec.Template.Spec.Containers[0]
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value + e.From.Field.Path
	}
	require.Equal(t, "metadata.annotations['batch.kubernetes.io/job-completion-index']", env["RANK"])
	require.Equal(t, job.Metadata.Name+"-0."+service.Metadata.Name, env["MASTER_ADDR"])
	require.EqualValues(t, "29500", env["MASTER_PORT"])
	require.Equal(t, 29500, service.Spec.Ports[0].Port)
	require.Equal(t, "metadata.labels['batch.kubernetes.io/controller-uid']", env["KOLO_JOB"])
	env["RANK"] = "3" // as index 3 has it
	p, err := (&app{getenv: func(k string) string { return env[k] }}).place()
	require.NoError(t, err)
	require.Equal(t, place{3, job.Spec.Completions}, p)
	accepts(t, c.Command)
}

// accepts makes sure that kolo knows a command line.
func accepts(t *testing.T, words []string) {
	require.Equal(t, "kolo", words[0])
	cmd, rest, err := (&app{}).command().Find(words[1:])
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest), words)
	require.NotNil(t, cmd.RunE, words)
	require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), words)
}

func TestSlurmScript(t *testing.T) {
	text, err := os.ReadFile("../../examples/slurm/world.sbatch")
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	require.Equal(t, "#!/bin/bash", lines[0])
	options, directives, commands := map[string]string{}, true, 0
	for _, line := range lines[1:] {
		if o, ok := strings.CutPrefix(line, "#SBATCH "); ok {
			require.True(t, directives, "sbatch reads no options after the first command: %s", line)
			require.Regexp(t, regexp.MustCompile(`^--[a-z-]+(=\S+)?$`), o)
			name, value, _ := strings.Cut(o, "=")
			options[name] = value
		} else if line != "" && !strings.HasPrefix(line, "#") {
			directives = false
		}
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "srun" {
			continue
		}
		commands++
		i := 1
		for strings.HasPrefix(words[i], "--") {
			i++
		}
		accepts(t, words[i:])
	}
	require.Equal(t, 2, commands)
	for _, o := range []string{"--nodes", "--ntasks-per-node", "--time"} {
		require.NotEmpty(t, options[o], o)
	}
	env := map[string]string{"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}
	p, err := (&app{getenv: func(k string) string { return env[k] }}).place()
	require.NoError(t, err)
	require.Equal(t, place{7, 8}, p)
}
