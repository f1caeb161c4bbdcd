package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// expectation gathers the calls that a release should permit, each with the reason.
type expectation struct {
	release  *release
	calls    map[string]string
	problems []string
}

// expectedCalls derives calls from the arrows of specs/architecture.md, and from values where an arrow leads outside.
func (r *release) expectedCalls(facts *facts) (map[string]string, []string) {
	e := &expectation{release: r, calls: map[string]string{}}
	for _, arrow := range facts.arrows {
		e.addArrow(arrow, facts)
	}
	e.addCommon()
	e.addAdditional(facts)
	return e.calls, e.problems
}

func (e *expectation) has(service string) bool {
	return slices.ContainsFunc(e.release.workloads(), func(w *workload) bool { return w.component() == service })
}

func (e *expectation) add(from, to string, number int32, why string) {
	e.calls[call(from, to, port{number, corev1.ProtocolTCP})] = why
}

func (e *expectation) addArrow(arrow arrow, facts *facts) {
	why := arrow.from + " → " + arrow.to + " in specs/architecture.md"
	if arrow.to == supervisorsRedis {
		e.checkSupervisorsRedis(arrow.from)
		return
	}
	if arrow.from == clients {
		e.addCallers(arrow.to, e.peers("networkPolicy", "clients"), facts, why)
		return
	}
	if !e.has(arrow.from) {
		if arrow.to == "supervisor" {
			e.addCallers(arrow.to, e.peers("supervisor", "gateways"), facts, why)
		}
		return
	}
	switch arrow.to {
	case coordinatorRedis:
		if e.has("redis") {
			e.add(arrow.from, "redis", 6379, why)
		} else {
			e.addTargets(arrow.from, why, "redis", "egress")
		}
	case sagaRedis:
		if text(e.release.value("saga", "store", "kind")) == "redis" {
			e.addTargets(arrow.from, why, "saga", "store", "redis", "egress")
		}
	case nats:
		e.addTargets(arrow.from, why, "saga", "nats", "egress")
	case aggregates:
		e.addTargets(arrow.from, why, "saga", "gateway", "egress")
	case outsideWorld:
		e.addTargets(arrow.from, why, "saga", "outsideWorld")
	default:
		e.addServiceCall(arrow, facts, why)
	}
}

// addServiceCall expects a call between two services of the release. A sidecar takes it up where both have one.
func (e *expectation) addServiceCall(arrow arrow, facts *facts, why string) {
	mesh := text(e.release.value("mesh", "kind"))
	port := facts.programs[arrow.to].port
	meshed := mesh != "none" && arrow.to != "supervisor"
	tls := mesh == "istio" && arrow.from == "router" && arrow.to == "scheduler"
	if meshed && !tls {
		port += 200
	}
	if e.has(arrow.to) {
		e.add(arrow.from, arrow.to, port, why)
		if meshed && mesh == "linkerd" {
			e.add(arrow.from, arrow.to, 4143, why+", by Linkerd's proxies")
		}
	}
	if arrow.to == "supervisor" {
		e.addTargets(arrow.from, why, "myceliumGateway", "supervisorsElsewhere")
		e.addDaemon("mycelium-gateway", "myceliumGateway", why)
		if e.has("supervisor") {
			e.addDaemon("supervisor", "supervisor", why)
		}
	}
	e.checkAddress(arrow, port)
}

// checkAddress checks that the caller is given the address that the policies permit.
func (e *expectation) checkAddress(arrow arrow, port int32) {
	flag := "--" + arrow.to
	caller := arrow.from
	if arrow.to == "supervisor" {
		return
	}
	if arrow.from == "router" && arrow.to == "scheduler" {
		flag, caller = "--advertise", "scheduler"
	}
	for _, workload := range e.release.workloads() {
		if workload.component() != caller {
			continue
		}
		for _, value := range flagsOf(workload.containers()[0])[flag] {
			if address, err := url.Parse(strings.ReplaceAll(value, "$(POD_IP)", "pod")); err == nil && address.Port() == fmt.Sprint(port) {
				return
			}
		}
	}
	e.problems = append(e.problems, fmt.Sprintf("%s is not given an address of %s with the port %d by %s", caller, arrow.to, port, flag))
}

func (e *expectation) addDaemon(service, values, why string) {
	ip, err := netip.ParseAddr(text(e.release.value(values, "mycelium", "ip")))
	if err != nil {
		return
	}
	for _, other := range others {
		if other.address == ip {
			e.add(service, other.name, 8990, why+", over the bus")
		}
	}
}

// checkSupervisorsRedis checks that supervisor and runners share a Redis within their pod, so that no policy is about it.
func (e *expectation) checkSupervisorsRedis(caller string) {
	for _, workload := range e.release.workloads() {
		if workload.component() != "supervisor" {
			continue
		}
		hasRedis, calls := false, false
		for _, container := range workload.containers() {
			hasRedis = hasRedis || container.Name == "redis"
			urls := flagsOf(container)["--redis-url"]
			calls = calls || program(container) == caller && len(urls) == 1 && strings.HasPrefix(urls[0], "unix://")
		}
		if !hasRedis || !calls {
			e.problems = append(e.problems, caller+" has no Redis at a socket in its pod")
		}
	}
}

// addCallers expects calls of a service's TLS port, and in Linkerd of the proxy before it.
func (e *expectation) addCallers(service string, peers []networkingv1.NetworkPolicyPeer, facts *facts, why string) {
	if !e.has(service) || len(peers) == 0 {
		return
	}
	for _, other := range others {
		if !matchesAny(peers, other) {
			continue
		}
		e.add(other.name, service, facts.programs[service].port, why)
		if text(e.release.value("mesh", "kind")) == "linkerd" && service != "supervisor" {
			e.add(other.name, service, 4143, why+", by Linkerd's proxies")
		}
	}
}

// addTargets expects calls to whatever endpoints rules in the values name.
func (e *expectation) addTargets(from, why string, path ...string) {
	var rules []networkingv1.NetworkPolicyEgressRule
	e.decode(&rules, path...)
	for _, rule := range rules {
		for _, target := range e.release.endpoints() {
			if target.ours || !matchesAny(rule.To, target) {
				continue
			}
			for _, one := range rule.Ports {
				if one.Port != nil {
					e.add(from, target.name, one.Port.IntVal, why)
				}
			}
		}
	}
}

func (e *expectation) peers(path ...string) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	e.decode(&peers, path...)
	return peers
}

func (e *expectation) decode(into any, path ...string) {
	encoded, err := json.Marshal(e.release.value(path...))
	if err == nil {
		err = json.Unmarshal(encoded, into)
	}
	if err != nil {
		e.problems = append(e.problems, fmt.Sprintf("%s: %v", strings.Join(path, "."), err))
	}
}

// addCommon expects names to be resolved, and sidecars to reach their control plane.
func (e *expectation) addCommon() {
	for _, workload := range e.release.workloads() {
		service := workload.component()
		if service == "redis" {
			continue
		}
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			e.calls[call(service, "dns", port{53, protocol})] = "names"
		}
		if service == "supervisor" {
			continue
		}
		switch text(e.release.value("mesh", "kind")) {
		case "linkerd":
			for _, number := range []int32{8080, 8086, 8090} {
				e.add(service, "linkerd", number, "the control plane")
			}
		case "istio":
			e.add(service, "istiod", 15012, "the control plane")
		}
	}
}

// addAdditional expects calls that specs/architecture.md does not list, where the values ask for them.
func (e *expectation) addAdditional(facts *facts) {
	monitoring := e.peers("networkPolicy", "additional", "monitoring")
	for _, workload := range e.release.workloads() {
		for _, container := range workload.containers() {
			for _, one := range container.Ports {
				for _, other := range others {
					if strings.HasPrefix(one.Name, "ops") && len(monitoring) > 0 && matchesAny(monitoring, other) {
						e.add(other.name, workload.component(), one.ContainerPort, "monitoring")
					}
				}
			}
		}
		if workload.component() != "redis" && text(e.release.value("telemetry", "otlpEndpoint")) != "" {
			e.addTargets(workload.component(), "traces", "telemetry", "egress")
		}
	}
	e.addCallers("saga", e.peers("networkPolicy", "additional", "sagaClients"), facts, "SagaService")
	e.addCallers("supervisor", e.peers("networkPolicy", "additional", "operators"), facts, "operators")
	e.addCallers("mycelium-gateway", e.peers("networkPolicy", "additional", "correspondents", "from"), facts, "mail")
	if e.has("mycelium-gateway") {
		e.addTargets("mycelium-gateway", "mail", "networkPolicy", "additional", "correspondents", "to")
	}
	if e.has("supervisor") {
		e.addTargets("supervisor", "scripts", "networkPolicy", "additional", "scripts")
	}
}
