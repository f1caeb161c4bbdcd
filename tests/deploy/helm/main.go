// Checks the Helm chart in deploy/helm/mycora against Kubernetes' types, the calls of specs/architecture.md, and the
// flags and ports of the services.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// configurations are the files in the chart's folder of that name.
var configurations = []string{"demo", "sentinel", "cluster", "linkerd", "istio"}

// report counts checks and prints those that fail.
type report struct {
	passed, failed int
}

// check prints the outcome of one check: everything that it found wrong.
func (r *report) check(name string, problems []string) {
	if len(problems) == 0 {
		r.passed++
		fmt.Printf("ok      %s\n", name)
		return
	}
	r.failed++
	fmt.Printf("FAILED  %s\n        %s\n", name, strings.Join(problems, "\n        "))
}

// found checks that an error that was planted is among the problems.
func (r *report) found(name string, problems []string, text string) {
	for _, problem := range problems {
		if strings.Contains(problem, text) {
			r.check("planted: "+name, nil)
			return
		}
	}
	r.check("planted: "+name, []string{fmt.Sprintf("not found: no problem says %q among %q", text, problems)})
}

func main() {
	root := flag.String("root", ".", "folder of the repository")
	bin := flag.String("bin", "", "folder with the programs of the services")
	printed := flag.String("print", "", "a configuration to print as it is rendered, without any check")
	flag.Parse()
	tree := repository{root: *root}
	chart := filepath.Join(*root, "deploy", "helm", "mycora")
	if *printed != "" {
		printRelease(chart, *printed)
		return
	}
	report := &report{}

	facts, problems := tree.facts()
	report.check("the flags, ports and calls of the services can be read", problems)
	checkSchema(report, chart)
	for _, name := range configurations {
		release, err := render(chart, configurationFile(chart, name), nil)
		if err != nil {
			report.check(name+": rendered", []string{err.Error()})
			continue
		}
		release.name = name
		checkRelease(report, release, facts)
		if *bin != "" {
			report.check(name+": programs accept their flags", programProblems(release, facts, *bin))
		}
		report.check(name+": linted", lintProblems(chart, release.given))
	}
	checkSupervisorsAlone(report, chart, facts)
	checkOpenings(report, chart, facts)
	checkRefusals(report, chart)
	checkPlanted(report, chart, facts)
	if *bin != "" {
		checkPlantedPrograms(report, chart, facts, *bin)
	}
	if *bin == "" {
		fmt.Println("left out: flags as the programs accept them (MYCORA_BIN names no folder with the programs)")
	}
	fmt.Printf("%d passed, %d failed\n", report.passed, report.failed)
	if report.failed > 0 {
		os.Exit(1)
	}
}

// releaseCheck lists what is wrong with a rendered release.
type releaseCheck func(*release, *facts) []string

// checkRelease makes the checks that every rendered release has to pass.
func checkRelease(report *report, release *release, facts *facts) {
	checks := []struct {
		what  string
		check releaseCheck
	}{
		{"objects are of Kubernetes' types", decodeProblems},
		{"names, labels and ports are valid", nameProblems},
		{"what objects name is there", referenceProblems},
		{"containers find what their flags name", containerProblems},
		{"pods are restricted, but for the supervisor's", securityProblems},
		{"ports are those of the programs", portProblems},
		{"flags exist in the code", flagProblems},
		{"autoscalers read what there is", scalingProblems},
		{"certificates are what services accept", certificateProblems},
		{"policies allow the calls of specs/architecture.md and no others", callProblems},
	}
	for _, one := range checks {
		report.check(release.name+": "+one.what, one.check(release, facts))
	}
}

func configurationFile(chart, name string) string {
	return filepath.Join(chart, "configurations", name+".yaml")
}

// printRelease prints a rendered configuration, for people and for kubectl.
func printRelease(chart, name string) {
	release, err := render(chart, configurationFile(chart, name), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, object := range release.objects {
		fmt.Printf("---\n%s", object.text)
	}
	fmt.Fprint(os.Stderr, release.notes)
}
