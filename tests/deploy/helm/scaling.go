package main

import (
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// scalingProblems lists metrics of autoscalers that are neither processor time nor in specs/metrics.md.
func scalingProblems(release *release, facts *facts) []string {
	var problems []string
	for _, object := range release.of("HorizontalPodAutoscaler") {
		autoscaler, ok := object.typed.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok {
			continue
		}
		for _, metric := range autoscaler.Spec.Metrics {
			if metric.Resource != nil && metric.Resource.Name == corev1.ResourceCPU {
				continue
			}
			name := metricName(metric)
			if !strings.Contains(facts.metrics, "`"+name+"`") {
				problems = append(problems, fmt.Sprintf("%s: specs/metrics.md has no metric %q", object.id(), name))
			}
		}
	}
	return problems
}

func metricName(metric autoscalingv2.MetricSpec) string {
	switch {
	case metric.Pods != nil:
		return metric.Pods.Metric.Name
	case metric.Object != nil:
		return metric.Object.Metric.Name
	case metric.External != nil:
		return metric.External.Metric.Name
	}
	return ""
}
