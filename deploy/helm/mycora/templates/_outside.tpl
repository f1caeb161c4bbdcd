{{/*
Whether storage uses the Redis of this release: `true`, or nothing.
*/}}
{{- define "mycora.usesTrialRedis" -}}
{{- if and .Values.redis.trial.enabled (not .Values.redis.url) (not .Values.redis.urlSecret.name) -}}true{{- end -}}
{{- end }}

{{/*
Egress rule to the daemon of Mycelium at an address; none for one in the same pod. Arguments: ip, port.
*/}}
{{- define "mycora.daemonEgress" -}}
{{- if and .ip (not (hasPrefix "127." .ip)) (ne .ip "::1") }}
# The daemon of Mycelium, which carries payloads between the gateway and supervisors
- to:
    - ipBlock: {cidr: {{ printf "%s/%d" .ip (contains ":" .ip | ternary 128 32) | quote }}}
  ports:
    - {protocol: TCP, port: {{ .port }}}
{{- end }}
{{- end }}

{{/*
Rules that an operator gave for one target. Arguments: value (where it stands), rules, what.
*/}}
{{- define "mycora.givenEgress" -}}
{{- if empty .rules -}}
{{- fail (printf "%s: NetworkPolicy rules by which %s is reached; without any the default deny cuts it off" .value .what) -}}
{{- end }}
# {{ .what }}
{{ toYaml .rules }}
{{- end }}

{{/*
Egress rules to what a service calls outside of the release. Arguments: root, service.
*/}}
{{- define "mycora.outside" -}}
{{- $values := .root.Values -}}
{{- if eq .service "storage" -}}
{{- if include "mycora.usesTrialRedis" .root }}
# Redis
- to:
    - podSelector:
        matchLabels:
          {{- include "mycora.selector" (dict "root" .root "service" "redis") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 6379}
{{- else }}
{{- include "mycora.givenEgress" (dict "value" "redis.egress" "rules" $values.redis.egress "what" "the coordinator's Redis") }}
{{- end }}
{{- else if eq .service "mycelium-gateway" -}}
{{- include "mycora.daemonEgress" $values.myceliumGateway.mycelium }}
{{- with $values.myceliumGateway.supervisorsElsewhere }}
# Supervisors elsewhere
{{ toYaml . }}
{{- end }}
{{- with $values.networkPolicy.additional.correspondents.to }}
# Gateways of other coordinators
{{ toYaml . }}
{{- end }}
{{- else if eq .service "supervisor" -}}
{{- include "mycora.daemonEgress" $values.supervisor.mycelium }}
{{- with $values.networkPolicy.additional.scripts }}
# Scripts with `network: true`, and the HTTP of `sal`
{{ toYaml . }}
{{- end }}
{{- else if eq .service "saga" -}}
{{- include "mycora.givenEgress" (dict "value" "saga.nats.egress" "rules" $values.saga.nats.egress "what" "NATS JetStream") }}
{{- if eq $values.saga.store.kind "redis" }}
{{- include "mycora.givenEgress" (dict "value" "saga.store.redis.egress" "rules" $values.saga.store.redis.egress "what" "the Redis of sagas") }}
{{- end }}
{{- if $values.saga.gateway.url }}
{{- include "mycora.givenEgress" (dict "value" "saga.gateway.egress" "rules" $values.saga.gateway.egress "what" "the gateway of aggregates") }}
{{- end }}
{{- with $values.saga.outsideWorld }}
# The outside world: calls over HTTP and SMTP
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end }}
