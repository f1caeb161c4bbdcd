package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// refusals are values that the chart refuses, each with a part of the text that says why.
var refusals = []struct{ configuration, values, text string }{
	{"demo", `{"image": {"repository": ""}}`, "image.repository"},
	{"demo", `{"supervisor": {"runnerImage": {"repository": ""}}}`, "supervisor.runnerImage"},
	{"demo", `{"supervisor": {"runners": [{"name": "much-too-long"}]}}`, "runners"},
	{"demo", `{"myceliumGateway": {"signingSecret": {"name": ""}}}`, "mycora pki issue service/mycelium-gateway"},
	{"demo", `{"redis": {"trial": {"enabled": false}}}`, "redis"},
	{"demo", `{"myceliumGateway": {"replicas": 2}}`, "replicas"},
	{"demo", `{"runnerRegistry": {"replicas": 2}}`, "replicas"},
	{"demo", `{"redis": {"url": "rediss://redis:6379"}}`, "redis"},
	{"demo", `{"redis": {"url": "redis://me:secret@redis:6379"}}`, "redis"},
	{"demo", `{"storage": {"layout": "none"}}`, "layout"},
	{"demo", `{"supervisor": {"coordinators": ["abc"]}}`, "coordinators"},
	{"demo", `{"unknown": true}`, "unknown"},
	{"cluster", `{"storage": {"layout": "database"}}`, "hash-tag"},
	{"cluster", `{"redis": {"egress": []}}`, "redis.egress"},
	{"cluster", `{"telemetry": {"egress": []}}`, "telemetry.egress"},
	{"sentinel", `{"saga": {"replicas": 2}}`, "a directory belongs to one process"},
	{"sentinel", `{"saga": {"nats": {"egress": []}}}`, "saga.nats.egress"},
	{"sentinel", `{"saga": {"nats": {"url": ""}}}`, "saga.nats.url"},
	{"sentinel", `{"coordinator": {"enabled": false}}`, "coordinator.enabled"},
	{"sentinel", `{"certificates": {"issuer": {"name": ""}}}`, "certificates.issuer.name"},
}

// checkRefusals checks that values which cannot work are refused, with a reason.
func checkRefusals(report *report, chart string) {
	for _, one := range refusals {
		overrides := map[string]any{}
		if err := json.Unmarshal([]byte(one.values), &overrides); err != nil {
			report.check("refused: "+one.values, []string{err.Error()})
			continue
		}
		var problems []string
		_, err := render(chart, configurationFile(chart, one.configuration), overrides)
		if err == nil {
			problems = []string{"it is rendered"}
		} else if !strings.Contains(err.Error(), one.text) {
			problems = []string{fmt.Sprintf("the text %q is not in %v", one.text, err)}
		}
		report.check(fmt.Sprintf("refused: %s with %s", one.configuration, one.values), problems)
	}
}

// checkSupervisorsAlone renders a release without a coordinator, whose gateways are elsewhere.
func checkSupervisorsAlone(report *report, chart string, facts *facts) {
	overrides := map[string]any{}
	text := `{"coordinator": {"enabled": false}, "redis": {"trial": {"enabled": false}},
		"supervisor": {"gateways": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}}`
	if err := json.Unmarshal([]byte(text), &overrides); err != nil {
		report.check("supervisors alone: rendered", []string{err.Error()})
		return
	}
	release, err := render(chart, configurationFile(chart, "demo"), overrides)
	if err != nil {
		report.check("supervisors alone: rendered", []string{err.Error()})
		return
	}
	release.name = "supervisors alone"
	checkRelease(report, release, facts)
	var problems []string
	if len(release.workloads()) != 1 {
		problems = []string{fmt.Sprintf("%d workloads", len(release.workloads()))}
	}
	report.check("supervisors alone: there is nothing else", problems)
}

// checkSchema checks that values.yaml and values.schema.json have the same keys.
func checkSchema(report *report, chart string) {
	values, schema := map[string]any{}, map[string]any{}
	problems := readYAML(filepath.Join(chart, "values.yaml"), &values)
	problems = append(problems, readYAML(filepath.Join(chart, "values.schema.json"), &schema)...)
	definitions, _ := schema["definitions"].(map[string]any)
	problems = append(problems, compareKeys("values", values, schema, definitions)...)
	report.check("values.yaml and values.schema.json have the same keys", problems)
}

func readYAML(path string, into any) []string {
	content, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(content, into)
	}
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", path, err)}
	}
	return nil
}

// compareKeys walks both trees. Maps that values fill freely have no keys in the schema.
func compareKeys(path string, value any, schema map[string]any, definitions map[string]any) []string {
	if name, refers := strings.CutPrefix(text(schema["$ref"]), "#/definitions/"); refers {
		schema, _ = definitions[name].(map[string]any)
	}
	table, isTable := value.(map[string]any)
	properties, isClosed := schema["properties"].(map[string]any)
	if !isTable || !isClosed {
		return nil
	}
	var problems []string
	for key, inner := range table {
		next, known := properties[key].(map[string]any)
		if !known {
			problems = append(problems, path+"."+key+" is not in the schema")
			continue
		}
		problems = append(problems, compareKeys(path+"."+key, inner, next, definitions)...)
	}
	for key := range properties {
		_, has := table[key]
		if optional := key == "global" || len(table) == 0 || isPartial(path, key); !has && !optional {
			problems = append(problems, path+"."+key+" is not in values.yaml")
		}
	}
	return problems
}

// isPartial says which keys values.yaml leaves out: those of a node's seccomp profile, and of resources.
func isPartial(path, key string) bool {
	return key == "localhostProfile" || strings.HasSuffix(strings.ToLower(path), "resources")
}
