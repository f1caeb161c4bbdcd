package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// opening is a value of the chart that permits a call which begins or ends outside of the release.
type opening struct {
	// from and to are the ends of the call; an empty `to` is every end that specs/architecture.md names for `from`.
	from, to string
	// value is where the chart's values name the other end.
	value string
	// expect adds what the value permits to the expected calls.
	expect func(*expectation, opening, arrow, string)
	// given is an example. Without one the chart demands the value wherever the caller is there.
	given string
}

// openings are all values that permit such calls. A call that has none is a problem.
var openings = []opening{
	{clients, "", "networkPolicy.clients", (*expectation).addCallers,
		`{"networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"mycora/clients": "true"}}}]}}`},
	{clients, "saga", "networkPolicy.additional.sagaClients", (*expectation).addCallers,
		`{"networkPolicy": {"additional": {"sagaClients": [{"namespaceSelector": {"matchLabels": {"mycora/saga-clients": "true"}}}]}}}`},
	{admin, "supervisor", "networkPolicy.additional.operators", (*expectation).addCallers,
		`{"networkPolicy": {"additional": {"operators": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}}}`},
	{"mycelium-gateway", "supervisor", "supervisor.gateways", (*expectation).addCallers,
		`{"supervisor": {"gateways": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}}`},
	{"mycelium-gateway", "supervisor", "myceliumGateway.supervisorsElsewhere", (*expectation).addTargets,
		`{"myceliumGateway": {"supervisorsElsewhere": [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": 7706}]}]}}`},
	{otherGateways, "mycelium-gateway", "networkPolicy.additional.correspondents.from", (*expectation).addCallers,
		`{"networkPolicy": {"additional": {"correspondents": {"from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}}}}`},
	{"mycelium-gateway", otherGateways, "networkPolicy.additional.correspondents.to", (*expectation).addTargets,
		`{"networkPolicy": {"additional": {"correspondents": {"to": [{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"port": 7705}]}]}}}}`},
	{"mycelium-gateway", daemon, "myceliumGateway.mycelium.ip", (*expectation).addDaemon,
		`{"myceliumGateway": {"mycelium": {"ip": "10.0.0.5", "port": 8991}}}`},
	{"supervisor", daemon, "supervisor.mycelium.ip", (*expectation).addDaemon,
		`{"supervisor": {"mycelium": {"ip": "10.0.0.5"}}}`},
	{"storage", coordinatorRedis, "redis.egress", (*expectation).addRedis, ""},
	{"saga", sagaRedis, "saga.store.redis.egress", (*expectation).addSagaRedis, ""},
	{"saga", nats, "saga.nats.egress", (*expectation).addTargets, ""},
	{"saga", aggregates, "saga.gateway.egress", (*expectation).addTargets,
		`{"saga": {"gateway": {"url": "https://orders.aggregates.svc:7443",
			"egress": [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "aggregates"}}}], "ports": [{"port": 7443}]}]}}}`},
	{"saga", outsideWorld, "saga.outsideWorld", (*expectation).addTargets,
		`{"saga": {"outsideWorld": [{"to": [{"ipBlock": {"cidr": "93.184.216.0/24"}}], "ports": [{"port": 587}]}]}}`},
	{"runner", outsideWorld, "networkPolicy.additional.scripts", (*expectation).addTargets,
		`{"networkPolicy": {"additional": {"scripts": [{"to": [{"ipBlock": {"cidr": "93.184.216.0/24"}}], "ports": [{"port": 443}]}]}}}`},
	{opsReaders, everyProcess, "networkPolicy.additional.monitoring", (*expectation).addOpsReaders,
		`{"networkPolicy": {"additional": {"monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}}}`},
	{everyProcess, collector, "telemetry.egress", (*expectation).addCollector,
		`{"telemetry": {"otlpEndpoint": "http://collector.telemetry.svc:4317",
			"egress": [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "telemetry"}}}], "ports": [{"port": 4317}]}]}}`},
}

func (o opening) opens(arrow arrow) bool {
	return o.from == arrow.from && (o.to == "" || o.to == arrow.to)
}

func (o opening) path() []string { return strings.Split(o.value, ".") }

// example is the tree of values that opens the call; an empty one where the chart demands the value anyway.
func (o opening) example() map[string]any {
	tree := map[string]any{}
	if err := json.Unmarshal([]byte(o.given), &tree); err != nil && o.given != "" {
		panic(o.value + ": " + err.Error())
	}
	return tree
}

// closed copies values without everything that opens a call, but for what the chart demands.
func closed(given map[string]any) map[string]any {
	copied := map[string]any{}
	encoded, _ := json.Marshal(given)
	_ = json.Unmarshal(encoded, &copied)
	for _, opening := range openings {
		remove(copied, opening.example())
	}
	return copied
}

// remove takes every value out of a tree that another tree has at the same place.
func remove(from, what map[string]any) {
	for key, inner := range what {
		table, isTable := inner.(map[string]any)
		there, hasTable := from[key].(map[string]any)
		if isTable && hasTable {
			remove(there, table)
		} else {
			delete(from, key)
		}
	}
}

// checkOpenings checks that each value opens its call and no other: alone, in the release that has most services.
func checkOpenings(report *report, chart string, facts *facts) {
	for _, opening := range openings {
		report.check("opened by "+opening.value, opening.problems(chart, facts))
		without := *facts
		without.arrows = slices.DeleteFunc(slices.Clone(facts.arrows), opening.opens)
		report.found("a row that "+opening.value+" opens and specs/architecture.md lacks", opening.problems(chart, &without), "no call of ours")
	}
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	var problems []string
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, opening := range openings {
		if !strings.Contains(string(readme), "`"+opening.value+"`") {
			problems = append(problems, "README.md does not name "+opening.value)
		}
	}
	report.check("README.md names every value that opens a call", problems)
}

// problems compares the calls of a release in which only this value opens any with those that specs/architecture.md lists.
func (o opening) problems(chart string, facts *facts) []string {
	given := map[string]any{}
	content, err := os.ReadFile(configurationFile(chart, "cluster"))
	if err == nil {
		err = yaml.UnmarshalStrict(content, &given)
	}
	if err != nil {
		return []string{err.Error()}
	}
	before, err := rendered(chart, closed(given))
	if err != nil {
		return []string{"closed: " + err.Error()}
	}
	after, err := rendered(chart, chartutil.CoalesceTables(o.example(), closed(given)))
	if err != nil {
		return []string{err.Error()}
	}
	problems := after.compareCalls(facts)
	if more := len(after.permittedCalls()) - len(before.permittedCalls()); more <= 0 && o.given != "" {
		problems = append(problems, fmt.Sprintf("%s opens nothing", o.value))
	}
	return problems
}

// rendered renders the chart with values that are no file, and decodes the objects.
func rendered(chart string, values map[string]any) (*release, error) {
	release, err := render(chart, "", values)
	if err != nil {
		return nil, err
	}
	for _, object := range release.objects {
		if err := object.decode(); err != nil {
			return nil, fmt.Errorf("%s: %w", object.id(), err)
		}
	}
	return release, nil
}
