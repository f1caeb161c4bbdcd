package main

import (
	"fmt"
	"slices"
	"strings"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
)

// certificateProblems compares certificates with what libs/identity and libs/rpc accept: one URI, the SPIFFE id; the
// service's name among the hosts, which other services check; the host of each address that clients or gateways use.
func certificateProblems(release *release, facts *facts) []string {
	var problems []string
	issued := map[string]*certmanager.Certificate{}
	for _, object := range release.of("Certificate") {
		if typed, ok := object.typed.(*certmanager.Certificate); ok {
			issued[typed.Spec.SecretName] = typed
		}
	}
	if text(release.value("certificates", "source")) == "secrets" {
		if len(issued) > 0 {
			problems = append(problems, "certificates are issued although Secrets are given")
		}
		return problems
	}
	for _, workload := range release.workloads() {
		for _, volume := range workload.pod.Spec.Volumes {
			if volume.Name != "tls" {
				continue
			}
			certificate := issued[volume.Secret.SecretName]
			if certificate == nil {
				problems = append(problems, workload.object.id()+": nothing issues "+volume.Secret.SecretName)
				continue
			}
			for _, problem := range release.serviceCertificateProblems(certificate, workload.component(), facts) {
				problems = append(problems, certificate.Name+": "+problem)
			}
		}
	}
	for _, certificate := range issued {
		if len(certificate.Spec.URIs) != 1 {
			problems = append(problems, fmt.Sprintf("%s: it has %d URIs, services accept one", certificate.Name, len(certificate.Spec.URIs)))
		}
		if key := certificate.Spec.PrivateKey; key == nil || key.Algorithm != certmanager.ECDSAKeyAlgorithm || key.Size != 256 {
			problems = append(problems, certificate.Name+": its key is none of ECDSA P-256, as `mycora pki issue` makes")
		}
	}
	return problems
}

func (r *release) serviceCertificateProblems(certificate *certmanager.Certificate, service string, facts *facts) []string {
	var problems []string
	id := fmt.Sprintf("spiffe://%s/service/%s", text(r.value("trustDomain")), service)
	if !slices.Equal(certificate.Spec.URIs, []string{id}) {
		problems = append(problems, fmt.Sprintf("its URIs are %q and not %q", certificate.Spec.URIs, id))
	}
	if !slices.Contains(facts.identities, service) {
		problems = append(problems, service+" is no service that an id may name")
	}
	hosts := []string{service, "localhost"}
	for _, object := range r.of("Service") {
		typed, ok := object.typed.(*corev1.Service)
		if !ok || typed.Labels["app.kubernetes.io/component"] != service || strings.HasSuffix(typed.Name, "-pods") {
			continue
		}
		host := typed.Name + "." + namespace + ".svc"
		hosts = append(hosts, typed.Name, host, host+"."+text(r.value("clusterDomain")))
		if service == "supervisor" {
			hosts = append(hosts, "*."+host+"."+text(r.value("clusterDomain")))
		}
	}
	for _, host := range hosts {
		if !slices.Contains(certificate.Spec.DNSNames, host) {
			problems = append(problems, "it is not for the host "+host)
		}
	}
	for _, usage := range []certmanager.KeyUsage{certmanager.UsageDigitalSignature, certmanager.UsageServerAuth, certmanager.UsageClientAuth} {
		if !slices.Contains(certificate.Spec.Usages, usage) {
			problems = append(problems, "it is not for "+string(usage))
		}
	}
	return problems
}
