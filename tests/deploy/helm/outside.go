package main

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// addCallers expects calls of a service's TLS port, and in Linkerd of the proxy before it.
func (e *expectation) addCallers(opening opening, arrow arrow, why string) {
	service := arrow.to
	peers := e.peers(opening)
	if !e.has(service) || len(peers) == 0 {
		return
	}
	for _, other := range others {
		if !matchesAny(peers, other) {
			continue
		}
		e.add(other.name, service, e.facts.programs[service].port, why)
		if text(e.release.value("mesh", "kind")) == "linkerd" && service != "supervisor" {
			e.add(other.name, service, 4143, why+", by Linkerd's proxies")
		}
	}
}

// addOpsReaders expects calls of the port for operators of each process.
func (e *expectation) addOpsReaders(opening opening, _ arrow, why string) {
	peers := e.peers(opening)
	if len(peers) == 0 {
		return
	}
	for _, process := range e.processes() {
		for _, one := range process.container.Ports {
			for _, other := range others {
				if strings.HasPrefix(one.Name, "ops") && matchesAny(peers, other) {
					e.add(other.name, process.pod, one.ContainerPort, why)
				}
			}
		}
	}
}

// addTargets expects calls to the endpoints that rules in the values name.
func (e *expectation) addTargets(opening opening, arrow arrow, why string) {
	pod := arrow.from
	if pod == "runner" {
		pod = "supervisor"
	}
	if e.has(pod) {
		e.addRules(pod, opening, why)
	}
}

// addCollector expects calls of each process that is given a collector.
func (e *expectation) addCollector(opening opening, _ arrow, why string) {
	isGiven := text(e.release.value("telemetry", "otlpEndpoint")) != ""
	for _, process := range e.processes() {
		if _, has := flagsOf(process.container)["--otlp-endpoint"]; has != isGiven {
			e.problems = append(e.problems, fmt.Sprintf("%s: --otlp-endpoint is not what telemetry.otlpEndpoint says", process.container.Name))
		} else if has {
			e.addRules(process.pod, opening, why)
		}
	}
}

// addDaemon expects calls to the daemon that the process's flags name.
func (e *expectation) addDaemon(opening opening, arrow arrow, why string) {
	given := text(e.release.value(opening.path()...))
	for _, process := range e.processes() {
		if program(process.container) != arrow.from {
			continue
		}
		flags := flagsOf(process.container)
		if is := strings.Join(flags["--mycelium-ip"], " "); is != given {
			e.problems = append(e.problems, fmt.Sprintf("%s: --mycelium-ip is %q, not what %s says", arrow.from, is, opening.value))
		}
		ip, err := netip.ParseAddr(given)
		if err != nil {
			continue
		}
		var number int32
		_, _ = fmt.Sscan(strings.Join(flags["--mycelium-port"], " "), &number)
		for _, other := range others {
			if other.address == ip {
				e.add(process.pod, other.name, number, why)
			}
		}
	}
}

// addRedis expects calls to the coordinator's Redis, which may be in the release.
func (e *expectation) addRedis(opening opening, arrow arrow, why string) {
	switch {
	case !e.has(arrow.from):
	case e.has("redis"):
		e.add(arrow.from, "redis", 6379, why)
	default:
		e.addRules(arrow.from, opening, why)
	}
}

// addSagaRedis expects calls to the Redis of sagas where they are kept in one.
func (e *expectation) addSagaRedis(opening opening, arrow arrow, why string) {
	if e.has(arrow.from) && text(e.release.value("saga", "store", "kind")) == "redis" {
		e.addRules(arrow.from, opening, why)
	}
}

// addRules expects calls of a pod to the endpoints that egress rules in the values name.
func (e *expectation) addRules(pod string, opening opening, why string) {
	var rules []networkingv1.NetworkPolicyEgressRule
	e.decode(&rules, opening.path()...)
	for _, rule := range rules {
		for _, target := range e.release.endpoints() {
			if target.ours || !matchesAny(rule.To, target) {
				continue
			}
			for _, one := range rule.Ports {
				if one.Port != nil {
					e.add(pod, target.name, one.Port.IntVal, why)
				}
			}
		}
	}
}

func (e *expectation) peers(opening opening) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	e.decode(&peers, opening.path()...)
	return peers
}

// process is a container that runs a program of ours, with the name of its pod.
type process struct {
	pod       string
	container corev1.Container
}

func (e *expectation) processes() []process {
	var found []process
	for _, workload := range e.release.workloads() {
		for _, container := range workload.containers() {
			if program(container) != "" {
				found = append(found, process{workload.component(), container})
			}
		}
	}
	return found
}
