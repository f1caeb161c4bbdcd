package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// capabilitiesOf are those that a container adds where scripts run as users of their own; _runner.tpl has the reasons.
var capabilitiesOf = map[string][]corev1.Capability{
	"supervisor": {"DAC_OVERRIDE", "FOWNER", "KILL"},
	"runner":     {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_PTRACE"},
}

// exceptions of the supervisor's pod from the level `restricted` of pod security, where its runners are root.
var exceptions = []string{"runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"}

// securityProblems lists what pods may and should not.
func securityProblems(release *release, _ *facts) []string {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return []string{err.Error()}
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	own, _ := release.value("supervisor", "usersOfTheirOwn").(bool)
	var problems []string
	for _, workload := range release.workloads() {
		var allowed []string
		if workload.component() == "supervisor" && own {
			allowed = exceptions
		}
		var refused []string
		for _, result := range evaluator.EvaluatePod(restricted, &workload.pod.ObjectMeta, &workload.pod.Spec) {
			if !result.Allowed {
				refused = append(refused, result.ForbiddenReason)
			}
		}
		slices.Sort(refused)
		if !slices.Equal(refused, allowed) {
			problems = append(problems, fmt.Sprintf("%s: pod security refuses %q, and %q is expected", workload.object.id(), refused, allowed))
		}
		for _, problem := range podProblems(workload.pod.Spec, own) {
			problems = append(problems, workload.object.id()+": "+problem)
		}
	}
	return problems
}

func podProblems(spec corev1.PodSpec, usersOfTheirOwn bool) []string {
	var problems []string
	isFalse := func(value *bool) bool { return value != nil && !*value }
	if !isFalse(spec.AutomountServiceAccountToken) {
		problems = append(problems, "a token of Kubernetes is mounted")
	}
	if !isFalse(spec.EnableServiceLinks) {
		problems = append(problems, "variables of Services stand beside those that the programs read")
	}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		where := "container " + container.Name + ": "
		context := container.SecurityContext
		if context == nil || context.Capabilities == nil {
			problems = append(problems, where+"no security context")
			continue
		}
		if context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem {
			problems = append(problems, where+"its root file system can be written")
		}
		if !isFalse(context.AllowPrivilegeEscalation) {
			problems = append(problems, where+"it may gain privileges")
		}
		if !slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			problems = append(problems, where+"it does not drop all capabilities")
		}
		var expected []corev1.Capability
		if usersOfTheirOwn {
			expected = capabilitiesOf[program(container)]
		}
		if !slices.Equal(context.Capabilities.Add, expected) {
			problems = append(problems, fmt.Sprintf("%sit adds %q, and %q is expected", where, context.Capabilities.Add, expected))
		}
		if container.Resources.Requests.Cpu().IsZero() || container.Resources.Limits.Memory().IsZero() {
			problems = append(problems, where+"it requests no processor time, or has no bound on memory")
		}
		problems = append(problems, passwordProblems(container, where)...)
	}
	return problems
}

// passwordProblems lists passwords that a list of processes or an object that is no Secret would show.
func passwordProblems(container corev1.Container, where string) []string {
	var problems []string
	for _, argument := range container.Args {
		if strings.Contains(argument, "://") && strings.Contains(argument, "@") {
			problems = append(problems, where+"a flag holds a password")
		}
	}
	for _, variable := range container.Env {
		if strings.Contains(variable.Value, "@") {
			problems = append(problems, where+variable.Name+" holds a password")
		}
	}
	return problems
}
