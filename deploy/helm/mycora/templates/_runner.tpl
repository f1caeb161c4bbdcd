{{/*
Security context of the supervisor. Beside runners that are root it is root as well, with the capabilities to read what
they write, to end what they leave running, and to remove the directories of contexts, which belong to other users.
*/}}
{{- define "mycora.supervisorSecurity" -}}
{{- if .Values.supervisor.usersOfTheirOwn -}}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  # DAC_OVERRIDE, FOWNER: directories of contexts' users, and the socket of Redis. KILL: those users' processes.
  add: [DAC_OVERRIDE, FOWNER, KILL]
{{- else -}}
{{ include "mycora.restricted" . }}
{{- end -}}
{{- end }}

{{/*
Security context of a runner. As root it gives each context a user of its own, which is what keeps the files and
processes of contexts apart (layer `own-uid`), and bounds them (level `contained`).
*/}}
{{- define "mycora.runnerSecurity" -}}
{{- if .Values.supervisor.usersOfTheirOwn -}}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  # SETUID, SETGID: scripts run as their context's user. CHOWN, DAC_OVERRIDE: that user's directories, and the socket of
  # Redis. FOWNER: removing what lies in sticky directories. KILL: ending the user's processes. SETPCAP: the launcher
  # empties the bounding set of scripts. SYS_PTRACE: the init looks into the script's processes (layers `network`,
  # `processes`) and the runner counts the files that they hold open; with it the default seccomp profile of container
  # runtimes also permits pidfd_getfd.
  add: [CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETPCAP, SETUID, SYS_PTRACE]
{{- else -}}
{{ include "mycora.restricted" . }}
{{- end }}
seccompProfile:
  {{- toYaml .Values.supervisor.runnerSeccompProfile | nindent 2 }}
{{- end }}

{{/*
Container of one runner. Arguments: root, runner, ops (its port), mounts.
*/}}
{{- define "mycora.runner" -}}
{{- $own := .root.Values.supervisor -}}
name: runner-{{ .runner.name }}
image: {{ include "mycora.runnerImage" (dict "root" .root "image" .runner.image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [mycora-runner]
args:
  {{- include "mycora.processFlags" (dict "root" .root "ops" .ops) | nindent 2 }}
  - --redis-url=unix:///run/mycora/redis.sock
  - --work-dir=/var/lib/mycora/work
  - --group={{ .runner.group | default "default" }}
  - --instance={{ .runner.instance | default 1 }}
  - --slots={{ .runner.slots | default 4 }}
  {{- with .runner.types }}
  - --types={{ join "," . }}
  {{- end }}
  - --isolation={{ .runner.isolation | default (ternary "contained" "basic" $own.usersOfTheirOwn) }}
  {{- with $own.diskFloorBytes }}
  - --disk-floor={{ int64 . }}
  {{- end }}
  {{- range .runner.extraArgs }}
  - {{ . | quote }}
  {{- end }}
ports:
  - {name: ops-{{ .runner.name }}, containerPort: {{ .ops }}}
{{ include "mycora.probes" (dict "port" .ops) }}
resources:
  {{- toYaml (.runner.resources | default $own.runnerResources) | nindent 2 }}
securityContext:
  {{- include "mycora.runnerSecurity" .root | nindent 2 }}
volumeMounts:
  {{- include "mycora.processMounts" (dict "root" .root) | nindent 2 }}
  {{- toYaml .mounts | nindent 2 }}
{{- end }}
