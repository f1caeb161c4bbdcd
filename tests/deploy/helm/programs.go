package main

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

var helpFlag = regexp.MustCompile(`(?m)^\s+(?:-\w, )?(--[a-z0-9-]+)`)

// programProblems asks the programs themselves: whether --help prints the flags of their containers, and whether they
// accept the values.
func programProblems(release *release, facts *facts, bin string) []string {
	var problems []string
	for _, workload := range release.workloads() {
		for _, container := range workload.containers() {
			if name := program(container); name != "" {
				path := filepath.Join(bin, "mycora-"+name)
				problems = append(problems, helpProblems(container, path, facts.programs[name].flags)...)
				problems = append(problems, valueProblems(container, path)...)
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// helpProblems compares flags with what --help prints. A program hides some that it does not use.
func helpProblems(container corev1.Container, path string, known map[string]clapFlag) []string {
	help, err := exec.Command(path, "--help").CombinedOutput()
	if err != nil {
		return []string{fmt.Sprintf("%s --help: %v", filepath.Base(path), err)}
	}
	var problems, printed []string
	for _, match := range helpFlag.FindAllStringSubmatch(string(help), -1) {
		printed = append(printed, match[1])
	}
	for _, flag := range slices.Sorted(maps.Keys(flagsOf(container))) {
		if !slices.Contains(printed, flag) {
			problems = append(problems, fmt.Sprintf("%s --help has no %s", filepath.Base(path), flag))
		}
	}
	for _, flag := range printed {
		if _, read := known[flag]; !read && flag != "--help" && flag != "--version" {
			problems = append(problems, fmt.Sprintf("%s --help has %s, which was not found in the code", filepath.Base(path), flag))
		}
	}
	return problems
}

// valueProblems gives a program its arguments, and --version behind them: it parses them all, and then only prints that.
func valueProblems(container corev1.Container, path string) []string {
	var arguments, variables []string
	for _, argument := range container.Args {
		argument = strings.ReplaceAll(argument, "$(POD_IP)", "10.2.0.1")
		arguments = append(arguments, strings.ReplaceAll(argument, "$(POD_NAME)", "mycora-router-0"))
	}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
			value = "redis://me:secret@redis:6379"
		}
		variables = append(variables, variable.Name+"="+value)
	}
	command := exec.Command(path, append(arguments, "--version")...)
	command.Env = variables
	output, err := command.CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
		return []string{fmt.Sprintf("%s: %s", filepath.Base(path), first)}
	}
	return nil
}

// checkPlantedPrograms plants a flag and a value that no program accepts.
func checkPlantedPrograms(report *report, chart string, facts *facts, bin string) {
	for _, plant := range []struct{ flag, value, text string }{
		{"--layouts", "database", "--help has no --layouts"},
		{"--layout", "none", "invalid value 'none'"},
		{"--limit", "flows=1", "invalid value 'flows=1'"},
	} {
		release, err := render(chart, configurationFile(chart, "demo"), nil)
		if err != nil {
			report.check("planted: "+plant.flag, []string{err.Error()})
			continue
		}
		storage := release.find("Deployment", "mycora-storage")
		giveFlag(plant.flag, plant.value)(storage.tree)
		storage.encode()
		decodeProblems(release, facts)
		report.found("a program's "+plant.flag+"="+plant.value, programProblems(release, facts, bin), plant.text)
	}
}
