{{/*
Name that all objects of the release begin with.
*/}}
{{- define "mycora.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/*
Name of the objects of one service. Arguments: root, service.
*/}}
{{- define "mycora.object" -}}
{{ include "mycora.fullname" .root }}-{{ .service }}
{{- end }}

{{/*
Name of the Secret with a service's certificate. Arguments: root, service.
*/}}
{{- define "mycora.tlsSecret" -}}
{{ .root.Values.certificates.secretPrefix | default (printf "%s-" (include "mycora.fullname" .root)) }}{{ .service }}-tls
{{- end }}

{{/*
Name of the Secret with the token of the ops ports, and of that with the trial Redis' settings.
*/}}
{{- define "mycora.opsTokenSecret" -}}
{{ .Values.opsToken.existingSecret | default (printf "%s-ops-token" (include "mycora.fullname" .)) }}
{{- end }}
{{- define "mycora.trialRedisSecret" -}}
{{ include "mycora.fullname" . }}-redis
{{- end }}

{{/*
Labels by which the pods of a service are found. Arguments: root, service.
*/}}
{{- define "mycora.selector" -}}
app.kubernetes.io/name: mycora
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .service }}
{{- end }}

{{/*
Labels of an object of a service. Arguments: root, service.
*/}}
{{- define "mycora.labels" -}}
{{ include "mycora.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{/*
Labels of an object of the whole release.
*/}}
{{- define "mycora.releaseLabels" -}}
app.kubernetes.io/name: mycora
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/*
Reference of an image. Arguments: image (repository, tag, digest), tag when it names neither tag nor digest.
*/}}
{{- define "mycora.image" -}}
{{- if .image.digest -}}{{ .image.repository }}@{{ .image.digest }}
{{- else -}}{{ .image.repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end }}

{{/*
Reference of the image with the services' programs.
*/}}
{{- define "mycora.programImage" -}}
{{- $_ := required "image.repository: name an image that has the programs mycora-storage, mycora-scheduler and so on in its PATH" .Values.image.repository -}}
{{- include "mycora.image" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end }}

{{/*
Reference of the image of a runner. Arguments: root, image (its own, or empty).
*/}}
{{- define "mycora.runnerImage" -}}
{{- $image := ternary .root.Values.supervisor.runnerImage .image (empty (.image).repository) -}}
{{- $_ := required "supervisor.runnerImage.repository: name an image that has mycora-runner in its PATH, and what scripts need" $image.repository -}}
{{- include "mycora.image" (dict "image" $image "tag" .root.Chart.AppVersion) -}}
{{- end }}
