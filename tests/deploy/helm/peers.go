package main

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// endpoint is a pod, or an address outside of the cluster.
type endpoint struct {
	name      string
	namespace string
	labels    map[string]string
	// further labels of the namespace
	namespaceLabels map[string]string
	address         netip.Addr
	ours            bool
}

// matchesPeer checks whether a peer of a policy in our namespace is this endpoint.
func matchesPeer(peer networkingv1.NetworkPolicyPeer, endpoint endpoint) bool {
	if peer.IPBlock != nil {
		block, err := netip.ParsePrefix(peer.IPBlock.CIDR)
		if err != nil || !block.Contains(endpoint.address) {
			return false
		}
		for _, except := range peer.IPBlock.Except {
			if part, err := netip.ParsePrefix(except); err == nil && part.Contains(endpoint.address) {
				return false
			}
		}
		return true
	}
	if endpoint.namespace == "" {
		return false
	}
	if peer.NamespaceSelector == nil && endpoint.namespace != namespace {
		return false
	}
	if peer.NamespaceSelector != nil && !matchesLabels(*peer.NamespaceSelector, endpoint.allNamespaceLabels()) {
		return false
	}
	return peer.PodSelector == nil || matchesLabels(*peer.PodSelector, endpoint.labels)
}

func (e endpoint) allNamespaceLabels() map[string]string {
	labels := map[string]string{"kubernetes.io/metadata.name": e.namespace}
	for key, value := range e.namespaceLabels {
		labels[key] = value
	}
	return labels
}

func matchesLabels(selector metav1.LabelSelector, labels map[string]string) bool {
	compiled, err := metav1.LabelSelectorAsSelector(&selector)
	return err == nil && compiled.Matches(labelSet(labels))
}

type labelSet map[string]string

func (l labelSet) Has(key string) bool              { _, has := l[key]; return has }
func (l labelSet) Get(key string) string            { return l[key] }
func (l labelSet) Lookup(key string) (string, bool) { value, has := l[key]; return value, has }

// matchesAny checks whether one of the peers is this endpoint; no peers at all are everything.
func matchesAny(peers []networkingv1.NetworkPolicyPeer, endpoint endpoint) bool {
	for _, peer := range peers {
		if matchesPeer(peer, endpoint) {
			return true
		}
	}
	return len(peers) == 0
}

// port is a port and its protocol.
type port struct {
	number   int32
	protocol corev1.Protocol
}

func matchesPort(ports []networkingv1.NetworkPolicyPort, wanted port) bool {
	for _, one := range ports {
		protocol := corev1.ProtocolTCP
		if one.Protocol != nil {
			protocol = *one.Protocol
		}
		if protocol != wanted.protocol {
			continue
		}
		if one.Port == nil || one.Port.Type == intstr.Int && one.Port.IntVal == wanted.number {
			return true
		}
		if one.EndPort != nil && one.Port.IntVal <= wanted.number && wanted.number <= *one.EndPort {
			return true
		}
	}
	return len(ports) == 0
}

// way is what policies say of one direction between two endpoints.
type way struct {
	restricted bool
	// ports that the rules for the other end permit, a list for each rule
	ports [][]networkingv1.NetworkPolicyPort
}

func (w way) permits(at port) bool {
	for _, ports := range w.ports {
		if matchesPort(ports, at) {
			return true
		}
	}
	return !w.restricted
}

// between looks up what the policies say of calls from one endpoint to another. Nothing restricts endpoints that are not
// ours.
func between(policies []*networkingv1.NetworkPolicy, from, to endpoint) (egress, ingress way) {
	for _, policy := range policies {
		if applies(policy, networkingv1.PolicyTypeEgress, from) {
			egress.restricted = true
			for _, rule := range policy.Spec.Egress {
				if matchesAny(rule.To, to) {
					egress.ports = append(egress.ports, rule.Ports)
				}
			}
		}
		if applies(policy, networkingv1.PolicyTypeIngress, to) {
			ingress.restricted = true
			for _, rule := range policy.Spec.Ingress {
				if matchesAny(rule.From, from) {
					ingress.ports = append(ingress.ports, rule.Ports)
				}
			}
		}
	}
	return egress, ingress
}

func applies(policy *networkingv1.NetworkPolicy, direction networkingv1.PolicyType, endpoint endpoint) bool {
	if !endpoint.ours || !matchesLabels(policy.Spec.PodSelector, endpoint.labels) {
		return false
	}
	for _, one := range policy.Spec.PolicyTypes {
		if one == direction {
			return true
		}
	}
	return false
}
