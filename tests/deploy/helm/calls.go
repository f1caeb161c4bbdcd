package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// others are endpoints that are not the release's: those that the configurations name, and strangers.
var others = []endpoint{
	{
		name: "client", namespace: "apps", namespaceLabels: map[string]string{"mycora/clients": "true"},
		address: netip.MustParseAddr("10.1.0.1"),
	},
	{
		name: "client of sagas", namespace: "shops", namespaceLabels: map[string]string{"mycora/saga-clients": "true"},
		address: netip.MustParseAddr("10.1.0.14"),
	},
	{name: "client outside", address: netip.MustParseAddr("192.0.2.10")},
	{name: "prometheus", namespace: "monitoring", address: netip.MustParseAddr("10.1.0.2")},
	{name: "dns", namespace: "kube-system", labels: map[string]string{"k8s-app": "kube-dns"}, address: netip.MustParseAddr("10.1.0.3")},
	{name: "other pod of kube-system", namespace: "kube-system", labels: map[string]string{"k8s-app": "other"}, address: netip.MustParseAddr("10.1.0.4")},
	{name: "redis", namespace: "redis", address: netip.MustParseAddr("10.1.0.5")},
	{name: "redis of sagas", namespace: "saga-redis", address: netip.MustParseAddr("10.1.0.6")},
	{name: "nats", namespace: "nats", address: netip.MustParseAddr("10.1.0.7")},
	{name: "aggregates", namespace: "aggregates", address: netip.MustParseAddr("10.1.0.8")},
	{name: "collector", namespace: "telemetry", address: netip.MustParseAddr("10.1.0.9")},
	{name: "linkerd", namespace: "linkerd", address: netip.MustParseAddr("10.1.0.10")},
	{name: "istiod", namespace: "istio-system", address: netip.MustParseAddr("10.1.0.11")},
	{name: "stranger", namespace: "strangers", address: netip.MustParseAddr("10.1.0.12")},
	{
		name: "stranger in the namespace", namespace: namespace, labels: map[string]string{"app.kubernetes.io/name": "other"},
		address: netip.MustParseAddr("10.1.0.13"),
	},
	{name: "mycelium daemon", address: netip.MustParseAddr("10.0.0.5")},
	{name: "supervisor elsewhere", address: netip.MustParseAddr("203.0.113.9")},
	{name: "correspondent", address: netip.MustParseAddr("198.51.100.9")},
	{name: "metadata service", address: netip.MustParseAddr("169.254.169.254")},
	{name: "public address", address: netip.MustParseAddr("93.184.216.34")},
}

// callProblems compares what the policies of a release permit with the calls of specs/architecture.md: with the values
// that open calls, and without them.
func callProblems(release *release, facts *facts) []string {
	problems := release.compareCalls(facts)
	bare, err := rendered(release.chart, closed(release.given))
	if err != nil {
		return append(problems, "closed: "+err.Error())
	}
	problems = append(problems, bare.compareCalls(facts)...)
	slices.Sort(problems)
	return slices.Compact(problems)
}

// compareCalls compares the calls that a release should permit with those that its policies permit.
func (r *release) compareCalls(facts *facts) []string {
	expected, problems := r.expectedCalls(facts)
	actual := r.permittedCalls()
	for _, call := range slices.Sorted(maps.Keys(expected)) {
		if !actual[call] {
			problems = append(problems, "not permitted: "+call+" ("+expected[call]+")")
		}
	}
	for _, call := range slices.Sorted(maps.Keys(actual)) {
		if _, wanted := expected[call]; !wanted {
			problems = append(problems, "permitted, and no call of ours: "+call)
		}
	}
	return problems
}

func call(from, to string, at port) string {
	return fmt.Sprintf("%s → %s:%d/%s", from, to, at.number, at.protocol)
}

// endpoints are the pods of the release, and others.
func (r *release) endpoints() []endpoint {
	var all []endpoint
	for at, workload := range r.workloads() {
		address := netip.AddrFrom4([4]byte{10, 2, 0, byte(at + 1)})
		all = append(all, endpoint{name: workload.component(), namespace: namespace, labels: workload.pod.Labels, address: address, ours: true})
	}
	return append(all, others...)
}

func (r *release) policies() []*networkingv1.NetworkPolicy {
	var policies []*networkingv1.NetworkPolicy
	for _, object := range r.of("NetworkPolicy") {
		if typed, ok := object.typed.(*networkingv1.NetworkPolicy); ok {
			policies = append(policies, typed)
		}
	}
	return policies
}

// ports are those that are tried between all endpoints: those of containers and rules, and some that nothing names.
func (r *release) ports() []port {
	tried := map[port]bool{}
	for _, number := range []int32{1, 22, 25, 53, 80, 443, 587, 4143, 4222, 6379, 7443, 7700, 7709, 8080, 8990, 9999, 26379} {
		tried[port{number, corev1.ProtocolTCP}] = true
		tried[port{number, corev1.ProtocolUDP}] = true
	}
	for _, workload := range r.workloads() {
		for _, container := range workload.containers() {
			for _, one := range container.Ports {
				tried[port{one.ContainerPort, corev1.ProtocolTCP}] = true
			}
		}
	}
	for _, policy := range r.policies() {
		for _, rule := range policy.Spec.Egress {
			for _, one := range rule.Ports {
				if one.Port != nil {
					tried[port{one.Port.IntVal, corev1.ProtocolTCP}] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(tried))
}

// permittedCalls tries every port between every two endpoints of which at least one is ours.
func (r *release) permittedCalls() map[string]bool {
	permitted := map[string]bool{}
	policies, endpoints, ports := r.policies(), r.endpoints(), r.ports()
	for _, from := range endpoints {
		for _, to := range endpoints {
			if !from.ours && !to.ours {
				continue
			}
			egress, ingress := between(policies, from, to)
			for _, at := range ports {
				if egress.permits(at) && ingress.permits(at) {
					permitted[call(from.name, to.name, at)] = true
				}
			}
		}
	}
	return permitted
}
