package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// expectation gathers the calls that a release should permit, each with the reason.
type expectation struct {
	release  *release
	facts    *facts
	calls    map[string]string
	problems []string
}

// expectedCalls derives calls from the arrows of specs/architecture.md, and from the values that open those which begin
// or end outside of the release.
func (r *release) expectedCalls(facts *facts) (map[string]string, []string) {
	e := &expectation{release: r, facts: facts, calls: map[string]string{}}
	for _, arrow := range facts.arrows {
		e.addArrow(arrow)
	}
	e.addCommon()
	return e.calls, e.problems
}

func (e *expectation) has(service string) bool {
	return slices.ContainsFunc(e.release.workloads(), func(w *workload) bool { return w.component() == service })
}

func (e *expectation) add(from, to string, number int32, why string) {
	e.calls[call(from, to, port{number, corev1.ProtocolTCP})] = why
}

func (e *expectation) addArrow(arrow arrow) {
	why := arrow.from + " → " + arrow.to + " in specs/architecture.md"
	if arrow.to == supervisorsRedis {
		e.checkSupervisorsRedis(arrow.from)
		return
	}
	isOurs := slices.Contains(services, arrow.from) && slices.Contains(services, arrow.to)
	if isOurs && e.has(arrow.from) {
		e.addServiceCall(arrow, why)
	}
	isOpened := false
	for _, opening := range openings {
		if opening.opens(arrow) {
			opening.expect(e, opening, arrow, why+", opened by "+opening.value)
			isOpened = true
		}
	}
	if !isOurs && !isOpened {
		e.problems = append(e.problems, "specs/architecture.md: no value is known that opens the call "+arrow.from+" → "+arrow.to)
	}
}

// addServiceCall expects a call between two services of the release. A sidecar takes it up where both have one.
func (e *expectation) addServiceCall(arrow arrow, why string) {
	mesh := text(e.release.value("mesh", "kind"))
	port := e.facts.programs[arrow.to].port
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
