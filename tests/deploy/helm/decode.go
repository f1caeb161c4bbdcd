package main

import (
	"encoding/json"
	"fmt"
	"strings"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"google.golang.org/protobuf/encoding/protojson"
	istio "istio.io/api/security/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// decoder knows Kubernetes' own types and those of cert-manager and the Prometheus operator, and refuses other fields.
var decoder = func() runtime.Decoder {
	types := scheme.Scheme
	for _, add := range []func(*runtime.Scheme) error{certmanager.AddToScheme, monitoring.AddToScheme} {
		if err := add(types); err != nil {
			panic(err)
		}
	}
	options := serializer.SerializerOptions{Yaml: true, Strict: true}
	return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, types, types, options)
}()

// decodeProblems decodes each object into its type, and refuses fields and values that the type does not have.
func decodeProblems(release *release, _ *facts) []string {
	var problems []string
	for _, object := range release.objects {
		if err := object.decode(); err != nil {
			problems = append(problems, fmt.Sprintf("%s (%s): %v", object.id(), object.template, err))
		}
		if text := string(object.text); strings.Contains(text, "<no value>") || strings.Contains(text, "%!") {
			problems = append(problems, object.id()+": a value was not there, or was printed as another kind")
		}
	}
	if strings.Contains(release.notes, "<no value>") || strings.Contains(release.notes, "%!") {
		problems = append(problems, "NOTES.txt: a value was not there, or was printed as another kind")
	}
	return problems
}

func (o *object) decode() error {
	if o.kind() == "PeerAuthentication" {
		return o.decodePeerAuthentication()
	}
	typed, _, err := decoder.Decode(o.text, nil, nil)
	if err != nil {
		return err
	}
	o.typed = typed
	return nil
}

// decodePeerAuthentication decodes the spec as Istio's message, whose own decoder would ignore other fields.
func (o *object) decodePeerAuthentication() error {
	spec, err := json.Marshal(o.tree["spec"])
	if err != nil {
		return err
	}
	if version := text(o.field("apiVersion")); version != "security.istio.io/v1" {
		return fmt.Errorf("apiVersion is %s", version)
	}
	return protojson.Unmarshal(spec, &istio.PeerAuthentication{})
}

// nameProblems lists names, labels and annotations that Kubernetes would refuse, and objects that come twice.
func nameProblems(release *release, _ *facts) []string {
	var problems []string
	seen := map[string]bool{}
	for _, object := range release.objects {
		if seen[object.id()] {
			problems = append(problems, object.id()+" is there twice")
		}
		seen[object.id()] = true
		meta := metav1.ObjectMeta{}
		encoded, err := json.Marshal(object.tree["metadata"])
		if err == nil {
			err = json.Unmarshal(encoded, &meta)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", object.id(), err))
			continue
		}
		meta.Namespace = namespace
		found := validation.ValidateObjectMeta(&meta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
		for _, one := range found {
			problems = append(problems, fmt.Sprintf("%s: %v", object.id(), one))
		}
		if object.kind() == "Service" {
			for _, why := range utilvalidation.IsDNS1035Label(object.name()) {
				problems = append(problems, fmt.Sprintf("%s: %s", object.id(), why))
			}
		}
	}
	for _, workload := range release.workloads() {
		problems = append(problems, workload.nameProblems()...)
	}
	return problems
}

// nameProblems lists names of containers and ports that Kubernetes would refuse.
func (w *workload) nameProblems() []string {
	var problems []string
	ports := map[string]bool{}
	for _, container := range w.containers() {
		for _, why := range utilvalidation.IsDNS1123Label(container.Name) {
			problems = append(problems, fmt.Sprintf("%s, container %s: %s", w.object.id(), container.Name, why))
		}
		for _, port := range container.Ports {
			for _, why := range utilvalidation.IsValidPortName(port.Name) {
				problems = append(problems, fmt.Sprintf("%s, port %s: %s", w.object.id(), port.Name, why))
			}
			number := fmt.Sprint(port.ContainerPort)
			if ports[port.Name] || ports[number] {
				problems = append(problems, fmt.Sprintf("%s: port %s, %s is there twice", w.object.id(), port.Name, number))
			}
			ports[port.Name], ports[number] = true, true
		}
	}
	return problems
}
