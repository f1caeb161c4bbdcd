package main

import (
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// plants are errors, each with the check that has to find it and a part of what that has to say. `change` is given the
// tree of the object.
var plants = []struct {
	name, configuration, object string
	change                      func(tree map[string]any)
	check                       releaseCheck
	text                        string
}{
	{"an unknown field", "demo", "Deployment/mycora-storage",
		set("spec.template.spec.dnsPolice", "ClusterFirst"),
		decodeProblems, "dnsPolice"},
	{"a value of another kind", "demo", "Deployment/mycora-storage",
		set("spec.replicas", "two"),
		decodeProblems, "replicas"},
	{"an unknown field of a certificate", "cluster", "Certificate/mycora-storage",
		set("spec.hosts", []any{"a"}),
		decodeProblems, "hosts"},
	{"an unknown field of a ServiceMonitor", "sentinel", "ServiceMonitor/mycora",
		set("spec.ports", []any{"a"}),
		decodeProblems, "ports"},
	{"an unknown field of Istio", "istio", "PeerAuthentication/mycora-storage",
		set("spec.mtls.level", "STRICT"),
		decodeProblems, "level"},
	{"a bad label", "demo", "Deployment/mycora-storage",
		set("metadata.labels.a", "b c"),
		nameProblems, "metadata.labels"},
	{"a Service for no pods", "demo", "Service/mycora-router",
		set("spec.selector.a", "b"),
		referenceProblems, "pods of 0 workloads"},
	{"an autoscaler of nothing", "sentinel", "HorizontalPodAutoscaler/mycora-router",
		set("spec.scaleTargetRef.kind", "Deployment"),
		referenceProblems, "there is no Deployment/mycora-router"},
	{"a budget for no pods", "demo", "PodDisruptionBudget/mycora-router",
		set("spec.selector.matchLabels.a", "b"),
		referenceProblems, "pods of 0 workloads"},
	{"a wrong address", "demo", "Deployment/mycora-scheduler",
		giveFlag("--storage", "https://mycora-storage.flows.svc:7702"),
		referenceProblems, "no such port"},
	{"a ServiceMonitor without the token", "sentinel", "ServiceMonitor/mycora",
		set("spec.endpoints", []any{map[string]any{"port": "ops"}}),
		referenceProblems, "without the token"},
	{"an absent Secret", "demo", "Deployment/mycora-storage",
		set("spec.template.spec.volumes", []any{map[string]any{"name": "tls", "secret": map[string]any{"secretName": "none"}}}),
		referenceProblems, "no Secret none"},
	{"a file that is not mounted", "demo", "Deployment/mycora-storage",
		giveFlag("--tls-ca", "/etc/other/ca.crt"),
		containerProblems, "nothing is mounted"},
	{"an unset variable", "demo", "Deployment/mycora-scheduler",
		giveFlag("--advertise", "https://$(POD_ADDRESS):7702"),
		containerProblems, "no variable POD_ADDRESS"},
	{"a probe of the wrong port", "demo", "Deployment/mycora-storage",
		inContainer("livenessProbe", map[string]any{"httpGet": map[string]any{"path": "/livez", "port": "tls"}}),
		containerProblems, "none for operators"},
	{"a root process", "demo", "Deployment/mycora-storage",
		set("spec.template.spec.securityContext.runAsUser", 0),
		securityProblems, "runAsUser=0"},
	{"a capability", "sentinel", "StatefulSet/mycora-supervisor",
		inContainer("securityContext.capabilities.add", []any{"SYS_ADMIN"}),
		securityProblems, "SYS_ADMIN"},
	{"a file system that can be written", "demo", "Deployment/mycora-storage",
		inContainer("securityContext.readOnlyRootFilesystem", false),
		securityProblems, "can be written"},
	{"a wrong port", "demo", "Deployment/mycora-storage",
		inContainer("ports", []any{map[string]any{"name": "tls", "containerPort": 7711}}),
		portProblems, "7711"},
	{"an unknown flag", "demo", "Deployment/mycora-storage",
		giveFlag("--layouts", "database"),
		flagProblems, "no flag --layouts"},
	{"another service's flag", "demo", "Deployment/mycora-runner-registry",
		giveFlag("--runner-registry", "https://a:1"),
		flagProblems, "no flag --runner-registry"},
	{"an unknown variable", "demo", "Deployment/mycora-storage",
		inContainer("env", []any{map[string]any{"name": "MYCORA_REDIS", "value": "a"}}),
		flagProblems, "reads no MYCORA_REDIS"},
	{"a required flag that lacks", "demo", "Deployment/mycora-mycelium-gateway",
		inContainer("args", []any{"--listen=0.0.0.0:7705"}),
		flagProblems, "--signing-key is required"},
	{"a metric that is not there", "sentinel", "HorizontalPodAutoscaler/mycora-router",
		set("spec.metrics", podsMetric("mycora_router_load")),
		scalingProblems, "mycora_router_load"},
	{"another identity", "cluster", "Certificate/mycora-storage",
		set("spec.uris", []any{"spiffe://mycora/service/scheduler"}),
		certificateProblems, "service/storage"},
	{"two identities", "cluster", "Certificate/mycora-storage",
		set("spec.uris", []any{"spiffe://mycora/service/storage", "spiffe://mycora/admin"}),
		certificateProblems, "2 URIs"},
	{"a certificate without the service's name", "cluster", "Certificate/mycora-storage",
		set("spec.dnsNames", []any{"localhost"}),
		certificateProblems, "host storage"},
	{"a call too few", "demo", "NetworkPolicy/mycora-router",
		set("spec.egress", []any{}),
		callProblems, "not permitted: router → storage:7701/TCP"},
	{"a caller too few", "linkerd", "NetworkPolicy/mycora-storage",
		set("spec.ingress", []any{}),
		callProblems, "not permitted: scheduler → storage:7901/TCP"},
	{"sagas that clients do not reach", "sentinel", "NetworkPolicy/mycora-saga",
		set("spec.ingress", []any{}),
		callProblems, "not permitted: client → saga:7708/TCP"},
	{"a collector that no value names", "demo", "Deployment/mycora-storage",
		giveFlag("--otlp-endpoint", "http://collector.telemetry.svc:4317"),
		callProblems, "storage: --otlp-endpoint"},
	{"a daemon that no value names", "demo", "Deployment/mycora-mycelium-gateway",
		giveFlag("--mycelium-ip", "10.0.0.5"),
		callProblems, "mycelium-gateway: --mycelium-ip"},
	{"a call too many", "demo", "NetworkPolicy/mycora-storage",
		set("spec.ingress", []any{map[string]any{}}),
		callProblems, "stranger → storage:7701/TCP"},
	{"a way out too many", "istio", "NetworkPolicy/mycora-scheduler",
		set("spec.egress", []any{map[string]any{}}),
		callProblems, "scheduler → public address:443/TCP"},
	{"a service without a policy", "cluster", "NetworkPolicy/mycora-deny",
		set("spec.podSelector.matchLabels.a", "b"),
		withoutPolicyOf("saga"), "stranger → saga:7708/TCP"},
}

// checkPlanted plants each error in a rendered release and checks that it is found.
func checkPlanted(report *report, chart string, facts *facts) {
	for _, plant := range plants {
		release, err := render(chart, configurationFile(chart, plant.configuration), nil)
		if err != nil {
			report.check("planted: "+plant.name, []string{err.Error()})
			continue
		}
		changed := false
		for _, object := range release.objects {
			if object.id() == plant.object {
				plant.change(object.tree)
				object.encode()
				changed = true
			}
		}
		if !changed {
			report.check("planted: "+plant.name, []string{"there is no " + plant.object})
			continue
		}
		problems := decodeProblems(release, facts)
		report.found(plant.name, append(problems, plant.check(release, facts)...), plant.text)
	}
	_, problems := readArrows("\n## Who calls whom\n\n| a | b | c |\n|---|---|---|\n| x | storage | y |\n")
	report.found("a call in unknown words", problems, `"x" → "storage"`)
	arrows := slices.Clone(facts.arrows)
	facts.arrows = append(arrows, arrow{"storage", "scheduler"}, arrow{"router", nats})
	if release, err := render(chart, configurationFile(chart, "demo"), nil); err == nil {
		decodeProblems(release, facts)
		problems := callProblems(release, facts)
		report.found("a call that only specs/architecture.md has", problems, "not permitted: storage → scheduler:7702/TCP")
		report.found("a call that no value opens", problems, "opens the call router → NATS")
	}
	facts.arrows = arrows
}

// encode makes the object's text from its tree again.
func (o *object) encode() { o.text, _ = yaml.Marshal(o.tree) }

// podsMetric is a list with one metric of pods, as an autoscaler has it.
func podsMetric(name string) []any {
	target := map[string]any{"type": "AverageValue", "averageValue": "1"}
	return []any{map[string]any{"type": "Pods", "pods": map[string]any{"metric": map[string]any{"name": name}, "target": target}}}
}

// set changes one field of an object.
func set(path string, value any) func(map[string]any) {
	return func(tree map[string]any) {
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			next, _ := tree[key].(map[string]any)
			if next == nil {
				next = map[string]any{}
				tree[key] = next
			}
			tree = next
		}
		tree[keys[len(keys)-1]] = value
	}
}

// inContainer changes one field of the first container.
func inContainer(path string, value any) func(map[string]any) {
	return func(tree map[string]any) {
		pod := (&object{tree: tree}).field("spec", "template", "spec").(map[string]any)
		first := pod["containers"].([]any)[0].(map[string]any)
		set(path, value)(first)
	}
}

// giveFlag gives the first container a flag, in the place of one of the same name.
func giveFlag(name, value string) func(map[string]any) {
	return func(tree map[string]any) {
		pod := (&object{tree: tree}).field("spec", "template", "spec").(map[string]any)
		first := pod["containers"].([]any)[0].(map[string]any)
		isSame := func(one any) bool { return strings.HasPrefix(text(one), name+"=") }
		args := slices.DeleteFunc(first["args"].([]any), isSame)
		first["args"] = append(args, name+"="+value)
	}
}

// withoutPolicyOf checks calls when the policy of one service, and the general one, select nothing.
func withoutPolicyOf(service string) releaseCheck {
	return func(release *release, facts *facts) []string {
		for _, object := range release.of("NetworkPolicy") {
			if policy, ok := object.typed.(*networkingv1.NetworkPolicy); ok && object.component() == service {
				policy.Spec.PodSelector.MatchLabels = maps.Clone(policy.Spec.PodSelector.MatchLabels)
				policy.Spec.PodSelector.MatchLabels["a"] = "b"
			}
		}
		return callProblems(release, facts)
	}
}
