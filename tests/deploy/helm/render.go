package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/runtime"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	releaseName = "mycora"
	// namespace is not the release's name, so that a name in the place of the other shows.
	namespace = "flows"
	// oldest is the first version of Kubernetes that the chart names.
	oldest = "v1.30.0"
)

// object is one rendered object: as text, as a tree, and once it was decoded as a Go type.
type object struct {
	template string
	text     []byte
	tree     map[string]any
	typed    runtime.Object
}

// release is a rendered chart.
type release struct {
	name    string
	chart   string
	given   map[string]any
	values  map[string]any
	objects []*object
	notes   string
}

func (o *object) field(path ...string) any {
	var at any = o.tree
	for _, key := range path {
		table, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = table[key]
	}
	return at
}

func (o *object) kind() string { return text(o.field("kind")) }
func (o *object) name() string { return text(o.field("metadata", "name")) }
func (o *object) id() string   { return o.kind() + "/" + o.name() }

// component is the service that the object belongs to.
func (o *object) component() string {
	return text(o.field("metadata", "labels", "app.kubernetes.io/component"))
}

func text(value any) string {
	text, _ := value.(string)
	return text
}

// render renders the chart with a file of values, and with overrides in the form of `--set`'s trees.
func render(chartDir, valuesFile string, overrides map[string]any) (*release, error) {
	given := map[string]any{}
	if valuesFile != "" {
		text, err := os.ReadFile(valuesFile)
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(text, &given); err != nil {
			return nil, fmt.Errorf("%s: %w", valuesFile, err)
		}
	}
	given = chartutil.CoalesceTables(overrides, given)
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	version, err := chartutil.ParseKubeVersion(oldest)
	if err != nil {
		return nil, err
	}
	if !chartutil.IsCompatibleRange(chart.Metadata.KubeVersion, oldest) {
		return nil, fmt.Errorf("kubeVersion %q does not include %s", chart.Metadata.KubeVersion, oldest)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := chartutil.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(chart, given, options, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, values)
	if err != nil {
		return nil, err
	}
	result := &release{chart: chartDir, given: given}
	result.values, _ = values["Values"].(chartutil.Values)
	return result, result.split(files)
}

// split takes the rendered files apart into objects.
func (r *release) split(files map[string]string) error {
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if path.Base(file) == "NOTES.txt" {
			r.notes = files[file]
			continue
		}
		reader := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(files[file])))
		for {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			tree := map[string]any{}
			if err := yaml.UnmarshalStrict(text, &tree); err != nil {
				return fmt.Errorf("%s: %w\n%s", file, err, text)
			}
			if len(tree) > 0 {
				r.objects = append(r.objects, &object{template: path.Base(file), text: bytes.Clone(text), tree: tree})
			}
		}
	}
	return nil
}

// of lists the objects of a kind.
func (r *release) of(kind string) []*object {
	var found []*object
	for _, object := range r.objects {
		if object.kind() == kind {
			found = append(found, object)
		}
	}
	return found
}

// value reads one of the values that the chart was rendered with.
func (r *release) value(path ...string) any {
	var at any = r.values
	for _, key := range path {
		switch table := at.(type) {
		case chartutil.Values:
			at = table[key]
		case map[string]any:
			at = table[key]
		default:
			return nil
		}
	}
	return at
}

// lintProblems lists what `helm lint` warns of.
func lintProblems(chartDir string, values map[string]any) []string {
	version, err := chartutil.ParseKubeVersion(oldest)
	if err != nil {
		return []string{err.Error()}
	}
	var problems []string
	for _, message := range lint.AllWithKubeVersion(chartDir, values, namespace, version).Messages {
		if message.Severity >= support.WarningSev {
			problems = append(problems, message.Error())
		}
	}
	return problems
}
