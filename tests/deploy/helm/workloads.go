package main

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// workload is a Deployment or a StatefulSet.
type workload struct {
	object   *object
	selector map[string]string
	pod      corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	governor string
}

// workloads lists what has pods. Objects that could not be decoded are left out: that is reported elsewhere.
func (r *release) workloads() []*workload {
	var found []*workload
	for _, object := range r.objects {
		switch typed := object.typed.(type) {
		case *appsv1.Deployment:
			found = append(found, &workload{object: object, selector: typed.Spec.Selector.MatchLabels, pod: typed.Spec.Template})
		case *appsv1.StatefulSet:
			found = append(found, &workload{
				object: object, selector: typed.Spec.Selector.MatchLabels, pod: typed.Spec.Template,
				claims: typed.Spec.VolumeClaimTemplates, governor: typed.Spec.ServiceName,
			})
		}
	}
	return found
}

// containers lists those that run all the time: native sidecars as well.
func (w *workload) containers() []corev1.Container {
	return slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
}

func (w *workload) component() string { return w.object.component() }

// program is the service that a container runs, or nothing for one that is not ours.
func program(container corev1.Container) string {
	if len(container.Command) == 0 {
		return ""
	}
	name, ours := strings.CutPrefix(container.Command[0], "mycora-")
	if !ours {
		return ""
	}
	return name
}

// flagsOf takes the arguments of a container apart: each is one word, with its value behind `=`.
func flagsOf(container corev1.Container) map[string][]string {
	flags := map[string][]string{}
	for _, argument := range container.Args {
		name, value, _ := strings.Cut(argument, "=")
		flags[name] = append(flags[name], value)
	}
	return flags
}

// selects checks whether a selector of labels matches, all of them.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// selected lists the workloads whose pods a selector matches.
func (r *release) selected(selector map[string]string) []*workload {
	var found []*workload
	for _, workload := range r.workloads() {
		if selects(selector, workload.pod.Labels) {
			found = append(found, workload)
		}
	}
	return found
}

// containerProblems lists what a container needs and does not find: files and variables that its arguments name,
// ports of its probes, volumes of its mounts.
func containerProblems(release *release, _ *facts) []string {
	var problems []string
	for _, workload := range release.workloads() {
		volumes := workload.volumes()
		mounted := map[string]bool{}
		for _, container := range workload.containers() {
			where := workload.object.id() + ", container " + container.Name
			for _, problem := range lacking(container, volumes, mounted) {
				problems = append(problems, where+": "+problem)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			if !mounted[name] {
				problems = append(problems, workload.object.id()+": no container mounts the volume "+name)
			}
		}
	}
	return problems
}

func (w *workload) volumes() map[string]bool {
	volumes := map[string]bool{}
	for _, volume := range w.pod.Spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, claim := range w.claims {
		volumes[claim.Name] = true
	}
	return volumes
}

func lacking(container corev1.Container, volumes, mounted map[string]bool) []string {
	var problems, mounts []string
	for _, mount := range container.VolumeMounts {
		mounted[mount.Name] = true
		mounts = append(mounts, mount.MountPath+"/")
		if !volumes[mount.Name] {
			problems = append(problems, "there is no volume "+mount.Name)
		}
	}
	variables := map[string]bool{}
	for _, variable := range container.Env {
		variables[variable.Name] = true
	}
	for _, argument := range container.Args {
		_, value, _ := strings.Cut(argument, "=")
		path := value
		if parsed, err := url.Parse(value); err == nil && parsed.Scheme == "unix" {
			path = parsed.Path
		}
		covers := func(mount string) bool { return strings.HasPrefix(path, mount) }
		if strings.HasPrefix(path, "/") && !strings.HasPrefix(argument, "--gateway-method=") &&
			!slices.ContainsFunc(mounts, covers) && !slices.Contains(mounts, path+"/") {
			problems = append(problems, argument+": nothing is mounted there")
		}
		for _, part := range strings.Split(value, "$(")[1:] {
			name, _, _ := strings.Cut(part, ")")
			if !variables[name] {
				problems = append(problems, argument+": there is no variable "+name)
			}
		}
	}
	return append(problems, probeProblems(container)...)
}

func probeProblems(container corev1.Container) []string {
	var problems []string
	probes := map[string]*corev1.Probe{
		"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe,
	}
	paths := map[string]string{"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
	for _, kind := range slices.Sorted(maps.Keys(probes)) {
		probe := probes[kind]
		if program(container) == "" {
			continue
		}
		if probe == nil || probe.HTTPGet == nil {
			problems = append(problems, "it has no "+kind+" probe over HTTP")
			continue
		}
		if probe.HTTPGet.Path != paths[kind] {
			problems = append(problems, fmt.Sprintf("its %s probe asks %s and not %s", kind, probe.HTTPGet.Path, paths[kind]))
		}
		port := probe.HTTPGet.Port.String()
		has := func(one corev1.ContainerPort) bool { return one.Name == port || fmt.Sprint(one.ContainerPort) == port }
		at := slices.IndexFunc(container.Ports, has)
		if at < 0 || !strings.HasPrefix(container.Ports[at].Name, "ops") {
			problems = append(problems, fmt.Sprintf("its %s probe asks port %s, which is none for operators", kind, port))
		}
	}
	return problems
}
