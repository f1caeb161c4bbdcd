package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// referenceProblems lists names in objects that lead nowhere.
func referenceProblems(release *release, _ *facts) []string {
	var problems []string
	for _, object := range release.objects {
		var found []string
		switch typed := object.typed.(type) {
		case *corev1.Service:
			found = release.serviceProblems(typed)
		case *policyv1.PodDisruptionBudget:
			found = release.selectionProblems(typed.Spec.Selector.MatchLabels)
		case *networkingv1.NetworkPolicy:
			if len(release.selected(typed.Spec.PodSelector.MatchLabels)) == 0 {
				found = []string{"it selects no pods"}
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			target := typed.Spec.ScaleTargetRef
			if release.find(target.Kind, target.Name) == nil {
				found = []string{"there is no " + target.Kind + "/" + target.Name}
			} else if release.find(target.Kind, target.Name).field("spec", "replicas") != nil {
				found = []string{target.Kind + "/" + target.Name + " has a number of replicas of its own"}
			}
		case *monitoring.ServiceMonitor:
			found = release.monitorProblems(typed)
		case *certmanager.Certificate:
			ref := typed.Spec.IssuerRef
			if given := text(release.value("certificates", "issuer", "name")); ref.Name != given && release.find(ref.Kind, ref.Name) == nil {
				found = []string{"there is no issuer " + ref.Name}
			}
		}
		for _, problem := range found {
			problems = append(problems, object.id()+": "+problem)
		}
	}
	for _, workload := range release.workloads() {
		for _, problem := range release.workloadProblems(workload) {
			problems = append(problems, workload.object.id()+": "+problem)
		}
	}
	return problems
}

func (r *release) find(kind, name string) *object {
	for _, object := range r.of(kind) {
		if object.name() == name {
			return object
		}
	}
	return nil
}

func (r *release) selectionProblems(selector map[string]string) []string {
	if selected := r.selected(selector); len(selected) != 1 {
		return []string{fmt.Sprintf("it selects the pods of %d workloads", len(selected))}
	}
	return nil
}

func (r *release) serviceProblems(service *corev1.Service) []string {
	problems := r.selectionProblems(service.Spec.Selector)
	if len(problems) > 0 {
		return problems
	}
	ports := map[string]int32{}
	for _, container := range r.selected(service.Spec.Selector)[0].containers() {
		for _, port := range container.Ports {
			ports[port.Name] = port.ContainerPort
		}
	}
	for _, port := range service.Spec.Ports {
		number, known := ports[port.TargetPort.String()]
		if !known {
			problems = append(problems, "no container has the port "+port.TargetPort.String())
		} else if number != port.Port {
			problems = append(problems, fmt.Sprintf("port %d leads to %d: policies and addresses take both for one", port.Port, number))
		}
	}
	return problems
}

func (r *release) monitorProblems(monitor *monitoring.ServiceMonitor) []string {
	var problems []string
	ports := map[string]bool{}
	for _, object := range r.of("Service") {
		service, ok := object.typed.(*corev1.Service)
		if ok && selects(monitor.Spec.Selector.MatchLabels, service.Labels) {
			for _, port := range service.Spec.Ports {
				ports[port.Name] = true
			}
		}
	}
	for _, endpoint := range monitor.Spec.Endpoints {
		if !ports[endpoint.Port] {
			problems = append(problems, "no selected Service has the port "+endpoint.Port)
		}
		if endpoint.Authorization == nil || endpoint.Authorization.Credentials == nil {
			problems = append(problems, "the port "+endpoint.Port+" is read without the token")
		} else if name := endpoint.Authorization.Credentials.Name; !slices.Contains(r.secrets(), name) {
			problems = append(problems, "there is no Secret "+name)
		}
	}
	if !slices.Equal(monitor.Spec.NamespaceSelector.MatchNames, []string{namespace}) {
		problems = append(problems, "it looks into other namespaces")
	}
	return problems
}

// secrets lists Secrets that the chart makes, that cert-manager makes for it, and that its values say are there.
func (r *release) secrets() []string {
	var names []string
	for _, object := range r.of("Secret") {
		names = append(names, object.name())
	}
	for _, object := range r.of("Certificate") {
		names = append(names, text(object.field("spec", "secretName")))
	}
	for _, path := range [][]string{
		{"opsToken", "existingSecret"}, {"redis", "urlSecret", "name"}, {"myceliumGateway", "signingSecret", "name"},
		{"myceliumGateway", "secretsSecret"}, {"saga", "store", "redis", "urlSecret", "name"}, {"saga", "nats", "secret"},
		{"saga", "secretsSecret"}, {"saga", "adminSecret", "name"},
	} {
		if name := text(r.value(path...)); name != "" {
			names = append(names, name)
		}
	}
	if text(r.value("certificates", "source")) == "secrets" {
		for _, workload := range r.workloads() {
			names = append(names, releaseName+"-"+workload.component()+"-tls")
		}
	}
	return names
}

func (r *release) workloadProblems(w *workload) []string {
	var problems []string
	if !selects(w.selector, w.pod.Labels) || len(r.selected(w.selector)) != 1 {
		problems = append(problems, "its selector does not match its pods, and only them")
	}
	spec := w.pod.Spec
	if spec.ServiceAccountName != "" && r.find("ServiceAccount", spec.ServiceAccountName) == nil {
		problems = append(problems, "there is no ServiceAccount "+spec.ServiceAccountName)
	}
	if w.object.kind() == "StatefulSet" {
		governor := r.find("Service", w.governor)
		if governor == nil || text(governor.field("spec", "clusterIP")) != "None" {
			problems = append(problems, "there is no headless Service "+w.governor)
		}
	}
	for _, volume := range spec.Volumes {
		if volume.Secret != nil && !slices.Contains(r.secrets(), volume.Secret.SecretName) {
			problems = append(problems, "there is no Secret "+volume.Secret.SecretName)
		}
		if volume.ConfigMap != nil && r.find("ConfigMap", volume.ConfigMap.Name) == nil && !r.isGivenConfigMap(volume.ConfigMap.Name) {
			problems = append(problems, "there is no ConfigMap "+volume.ConfigMap.Name)
		}
	}
	for _, container := range w.containers() {
		for _, variable := range container.Env {
			if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil && !slices.Contains(r.secrets(), from.SecretKeyRef.Name) {
				problems = append(problems, variable.Name+": there is no Secret "+from.SecretKeyRef.Name)
			}
		}
		for _, values := range flagsOf(container) {
			for _, value := range values {
				problems = append(problems, r.addressProblems(value)...)
			}
		}
	}
	return problems
}

func (r *release) isGivenConfigMap(name string) bool {
	return name == text(r.value("telemetry", "caConfigMap")) || name == text(r.value("myceliumGateway", "othersCaConfigMap"))
}

// addressProblems checks that an address in this namespace is that of a Service with that port.
func (r *release) addressProblems(value string) []string {
	address, err := url.Parse(value)
	if err != nil || address.Port() == "" {
		return nil
	}
	name, ours := strings.CutSuffix(address.Hostname(), "."+namespace+".svc")
	if !ours {
		return nil
	}
	object := r.find("Service", name)
	if object == nil {
		return []string{value + ": there is no such Service"}
	}
	for _, port := range object.typed.(*corev1.Service).Spec.Ports {
		if fmt.Sprint(port.Port) == address.Port() {
			if (port.Name == "mesh") != (address.Scheme == "http") {
				return []string{value + ": only the port of the sidecar is called in plaintext"}
			}
			return nil
		}
	}
	return []string{value + ": the Service has no such port"}
}
