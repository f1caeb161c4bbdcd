{{/*
Workload of a service that is one container: a Deployment, or a StatefulSet where replicas need names that stay.
Arguments: root, service, replicas ("" where an autoscaler sets them), flags, env, mounts, volumes (lists), claims (of a
StatefulSet), strategy, annotations.
*/}}
{{- define "mycora.workload" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
{{- $named := dict "root" .root "service" .service -}}
{{- $pod := fromYaml (include "mycora.podSettings" $named) -}}
apiVersion: apps/v1
kind: {{ $about.kind }}
metadata:
  name: {{ include "mycora.object" $named }}
  labels:
    {{- include "mycora.labels" $named | nindent 4 }}
spec:
  {{- if ne (toString .replicas) "" }}
  replicas: {{ .replicas }}
  {{- end }}
  {{- if eq $about.kind "StatefulSet" }}
  serviceName: {{ include "mycora.object" $named }}-pods
  podManagementPolicy: Parallel
  {{- else }}
  strategy:
    {{- .strategy | default "type: RollingUpdate\nrollingUpdate: {maxSurge: 1, maxUnavailable: 0}" | nindent 4 }}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "mycora.selector" $named | nindent 6 }}
  template:
    metadata:
      {{- include "mycora.podMetadata" (dict "root" .root "service" .service "pod" $pod "annotations" .annotations) | nindent 6 }}
    spec:
      {{- include "mycora.podBegin" (dict "root" .root "service" .service "pod" $pod "group" .root.Values.runAs.group) | nindent 6 }}
      containers:
        - {{ include "mycora.container" (dict "root" .root "service" .service "pod" $pod "flags" (.flags | default list) "env" (.env | default list) "mounts" (.mounts | default list)) | indent 10 | trim }}
      volumes:
        {{- include "mycora.commonVolumes" $named | nindent 8 }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- with .claims }}
  volumeClaimTemplates:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/*
Claim of a volume for each pod of a StatefulSet. Arguments: name, disk (size, storageClassName).
*/}}
{{- define "mycora.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: {{ .name }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .disk.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .disk.size }}
{{- end }}
