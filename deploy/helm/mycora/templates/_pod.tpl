{{/*
Settings of a service's pods: the common ones, overridden by those of the service. Arguments: root, service.
*/}}
{{- define "mycora.podSettings" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
{{- $own := (get .root.Values $about.values).pod | default dict -}}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.pod) (deepCopy $own)) -}}
{{- end }}

{{/*
Flags that every process takes, whether it serves gRPC or not. Arguments: root, ops (its port).
*/}}
{{- define "mycora.processFlags" -}}
- --ops-listen={{ .root.Values.listenAddress }}:{{ .ops }}
- --ops-token-file=/etc/mycora/ops/{{ .root.Values.opsToken.key }}
- --drain-secs={{ .root.Values.drainSeconds }}
- --log-format={{ .root.Values.log.format }}
- --log-level={{ .root.Values.log.level }}
{{- with .root.Values.telemetry.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- if and .root.Values.telemetry.otlpEndpoint .root.Values.telemetry.caConfigMap }}
- --otlp-ca=/etc/mycora/otlp/ca.crt
{{- end }}
{{- end }}

{{/*
Flags of every process that serves gRPC. Arguments: root, service.
*/}}
{{- define "mycora.servingFlags" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
- --listen={{ .root.Values.listenAddress }}:{{ $about.port }}
- --tls-ca=/etc/mycora/tls/ca.crt
- --tls-cert=/etc/mycora/tls/tls.crt
- --tls-key=/etc/mycora/tls/tls.key
- --tls-mode={{ .root.Values.tlsMode }}
{{- with .root.Values.actorCalls.perSecond }}
- --actor-calls-per-sec={{ . }}
{{- end }}
{{- with .root.Values.actorCalls.burst }}
- --actor-calls-burst={{ . }}
{{- end }}
{{- if include "mycora.isMeshed" . }}
- --mesh={{ .root.Values.mesh.kind }}
- --mesh-listen={{ .root.Values.listenAddress }}:{{ $about.mesh }}
- --mesh-namespace={{ .root.Release.Namespace }}
- --mesh-domain={{ .root.Values.mesh.trustDomain }}
- --mesh-trust-domain={{ .root.Values.trustDomain }}
{{- end }}
{{ include "mycora.processFlags" (dict "root" .root "ops" $about.ops) }}
{{- end }}

{{/*
Probes of the ops port. A process that lacks something is not ready; only one that does not answer /livez is ended.
Arguments: port (its name).
*/}}
{{- define "mycora.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{/*
Security context of a container that needs nothing of the kernel beyond what every process has.
*/}}
{{- define "mycora.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Security context of a pod. Arguments: root, group (of its volumes).
*/}}
{{- define "mycora.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .root.Values.runAs.user }}
runAsGroup: {{ .root.Values.runAs.group }}
fsGroup: {{ .group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
Labels of a pod beside those that find it, and its annotations, with those for the mesh. Arguments: root, service, pod.
*/}}
{{- define "mycora.podMetadata" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
{{- $meshed := include "mycora.isMeshed" (dict "root" .root "service" .service) -}}
{{- $labels := fromYaml (include "mycora.labels" (dict "root" .root "service" .service)) -}}
{{- $annotations := dict -}}
{{- if eq .root.Values.mesh.kind "linkerd" -}}
{{- $_ := set $annotations "linkerd.io/inject" (eq $meshed "true" | ternary "enabled" "disabled") -}}
{{- if $meshed -}}
{{- $_ := set $annotations "config.linkerd.io/opaque-ports" (toString $about.port) -}}
{{- end -}}
{{- else if eq .root.Values.mesh.kind "istio" -}}
{{- $_ := set $labels "sidecar.istio.io/inject" (eq $meshed "true" | ternary "true" "false") -}}
{{- end -}}
labels:
  {{- toYaml (mergeOverwrite (deepCopy (.pod.labels | default dict)) $labels) | nindent 2 }}
{{- with mergeOverwrite $annotations (deepCopy (.pod.annotations | default dict)) (deepCopy (.annotations | default dict)) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Place of a pod in the cluster. Arguments: root, service, pod.
*/}}
{{- define "mycora.placement" -}}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: {{ .maxSkew }}
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "mycora.selector" (dict "root" $.root "service" $.service) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
What every pod spec begins with. Arguments: root, service, pod, group (of its volumes).
*/}}
{{- define "mycora.podBegin" -}}
serviceAccountName: mycora-{{ .service }}
automountServiceAccountToken: false
# Variables of Services, such as MYCORA_STORAGE_PORT, would stand beside those that the programs read.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
# The drain, what it takes until no new connection comes, and some time to end.
terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds .root.Values.preStopSeconds 10 }}
securityContext:
  {{- include "mycora.podSecurity" (dict "root" .root "group" .group) | nindent 2 }}
{{- with include "mycora.placement" (dict "root" .root "service" .service "pod" .pod) | trim }}
{{ . }}
{{- end }}
{{- end }}

{{/*
Mounts of the certificate and of the token of the ops port, and their volumes. Arguments: root, service.
*/}}
{{- define "mycora.commonMounts" -}}
- {name: tls, mountPath: /etc/mycora/tls, readOnly: true}
{{ include "mycora.processMounts" . }}
{{- end }}
{{- define "mycora.processMounts" -}}
- {name: ops-token, mountPath: /etc/mycora/ops, readOnly: true}
{{- if and .root.Values.telemetry.otlpEndpoint .root.Values.telemetry.caConfigMap }}
- {name: otlp-ca, mountPath: /etc/mycora/otlp, readOnly: true}
{{- end }}
{{- end }}
{{- define "mycora.commonVolumes" -}}
# Services refuse to read a key that every user can read: group-readable, and the group is the pod's.
- name: tls
  secret: {secretName: {{ include "mycora.tlsSecret" (dict "root" .root "service" .service) }}, defaultMode: 0440}
- name: ops-token
  secret: {secretName: {{ include "mycora.opsTokenSecret" .root }}, defaultMode: 0440}
{{- if and .root.Values.telemetry.otlpEndpoint .root.Values.telemetry.caConfigMap }}
- name: otlp-ca
  configMap: {name: {{ .root.Values.telemetry.caConfigMap }}, defaultMode: 0444}
{{- end }}
{{- end }}

{{/*
The container of a service that runs its program alone.
Arguments: root, service, pod, flags (a list), env (a list), mounts (a list).
*/}}
{{- define "mycora.container" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
{{- $named := dict "root" .root "service" .service -}}
name: {{ .service }}
image: {{ include "mycora.programImage" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [mycora-{{ .service }}]
args:
  {{- include "mycora.servingFlags" $named | nindent 2 }}
  {{- range concat .flags (.pod.extraArgs | default list) }}
  - {{ . | quote }}
  {{- end }}
{{- with concat .env (.pod.extraEnv | default list) }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: tls, containerPort: {{ $about.port }}}
  - {name: ops, containerPort: {{ $about.ops }}}
  {{- if include "mycora.isMeshed" $named }}
  - {name: mesh, containerPort: {{ $about.mesh }}}
  {{- end }}
{{ include "mycora.probes" (dict "port" "ops") }}
{{- with .root.Values.preStopSeconds }}
lifecycle:
  preStop:
    sleep: {seconds: {{ . }}}
{{- end }}
resources:
  {{- toYaml .pod.resources | nindent 2 }}
securityContext:
  {{- .security | default (include "mycora.restricted" .root) | nindent 2 }}
volumeMounts:
  {{- include "mycora.commonMounts" $named | nindent 2 }}
  {{- with .mounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
