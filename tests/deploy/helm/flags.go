package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// flagProblems lists flags and variables of containers that the clap definitions of their programs do not have, and
// required ones that are not given.
func flagProblems(release *release, facts *facts) []string {
	var problems []string
	for _, workload := range release.workloads() {
		for _, container := range workload.containers() {
			if program(container) == "" {
				continue
			}
			where := workload.object.id() + ", container " + container.Name + ": "
			known, ours := facts.programs[program(container)]
			if !ours {
				problems = append(problems, where+"there is no program "+container.Command[0])
				continue
			}
			for _, problem := range misused(container, known.flags) {
				problems = append(problems, where+problem)
			}
		}
	}
	return problems
}

func misused(container corev1.Container, known map[string]clapFlag) []string {
	var problems []string
	given := flagsOf(container)
	variables := map[string]bool{}
	for _, flag := range known {
		variables[flag.env] = true
	}
	for _, variable := range container.Env {
		if strings.HasPrefix(variable.Name, "MYCORA_") && !variables[variable.Name] {
			problems = append(problems, "the program reads no "+variable.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, exists := known[name]; !exists {
			problems = append(problems, "the program has no flag "+name)
		}
		if len(given[name]) > 1 && name != "--limit" {
			problems = append(problems, name+" is given twice")
		}
	}
	has := func(env string) bool {
		return slices.ContainsFunc(container.Env, func(one corev1.EnvVar) bool { return one.Name == env })
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if _, isGiven := given[name]; known[name].required && !isGiven && !has(known[name].env) {
			problems = append(problems, name+" is required and not given")
		}
	}
	return problems
}

// portProblems compares ports of containers and Services with those that the programs have by default.
func portProblems(release *release, facts *facts) []string {
	var problems []string
	for _, workload := range release.workloads() {
		for _, container := range workload.containers() {
			name := program(container)
			if name == "" || name == "runner" {
				continue
			}
			ports := map[string]int32{}
			for _, port := range container.Ports {
				ports[port.Name] = port.ContainerPort
			}
			known := facts.programs[name]
			if ports["tls"] != known.port || ports["ops"] != known.ops {
				problems = append(problems, fmt.Sprintf("%s: ports %d and %d, the program has %d and %d",
					workload.object.id(), ports["tls"], ports["ops"], known.port, known.ops))
			}
			for flag, port := range map[string]string{"--listen": "tls", "--ops-listen": "ops", "--mesh-listen": "mesh"} {
				for _, value := range flagsOf(container)[flag] {
					if !strings.HasSuffix(value, fmt.Sprintf(":%d", ports[port])) {
						problems = append(problems, fmt.Sprintf("%s: %s=%s is not the port %s", workload.object.id(), flag, value, port))
					}
				}
			}
		}
	}
	return problems
}
