{{/*
Services of the suite: default ports of their programs, the port for a sidecar, the key of their values.
A port for the sidecar (`mesh`) has no default in the programs; 0: the service stays outside of the mesh.
*/}}
{{- define "mycora.services" -}}
storage:          {group: coordinator, values: storage,         kind: Deployment,  port: 7701, ops: 7801, mesh: 7901}
scheduler:        {group: coordinator, values: scheduler,       kind: Deployment,  port: 7702, ops: 7802, mesh: 7902}
router:           {group: coordinator, values: router,          kind: StatefulSet, port: 7703, ops: 7803, mesh: 7903}
runner-registry:  {group: coordinator, values: runnerRegistry,  kind: Deployment,  port: 7704, ops: 7804, mesh: 7904}
mycelium-gateway: {group: coordinator, values: myceliumGateway, kind: Deployment,  port: 7705, ops: 7805, mesh: 7905}
supervisor:       {group: supervisor,  values: supervisor,      kind: StatefulSet, port: 7706, ops: 7806, mesh: 0}
saga:             {group: saga,        values: saga,            kind: StatefulSet, port: 7708, ops: 7808, mesh: 7908}
{{- end }}

{{/*
Calls between services of the suite: the rows of "Who calls whom" in specs/architecture.md.
*/}}
{{- define "mycora.calls" -}}
scheduler: [runner-registry, storage]
router: [mycelium-gateway, runner-registry, scheduler, storage]
runner-registry: [storage]
mycelium-gateway: [runner-registry, storage, supervisor]
saga: [scheduler, storage]
{{- end }}

{{/*
Services that clients call: the first row of the same table.
*/}}
{{- define "mycora.publicServices" -}}
[mycelium-gateway, router, runner-registry, saga, scheduler, storage]
{{- end }}

{{/*
Services that the values switch on, with their row of `mycora.services`.
*/}}
{{- define "mycora.present" -}}
{{- $present := dict -}}
{{- range $service, $about := fromYaml (include "mycora.services" .) -}}
{{- if (get $.Values $about.group).enabled -}}
{{- $_ := set $present $service $about -}}
{{- end -}}
{{- end -}}
{{- toYaml $present -}}
{{- end }}

{{/*
Whether a service is behind a sidecar: `true`, or nothing. Arguments: root, service.
*/}}
{{- define "mycora.isMeshed" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .service -}}
{{- if and (ne .root.Values.mesh.kind "none") (gt (int $about.mesh) 0) -}}true{{- end -}}
{{- end }}

{{/*
Where routers find scheduler replicas in a mesh: `tls`, or `mesh`. Istio does no mTLS towards the address of a pod.
*/}}
{{- define "mycora.schedulerEntrance" -}}
{{- if eq .Values.mesh.kind "none" -}}tls
{{- else -}}{{ .Values.mesh.schedulerEntrance | default (eq .Values.mesh.kind "istio" | ternary "tls" "mesh") }}
{{- end -}}
{{- end }}

{{/*
Port at which one service calls another: `tls` or `mesh`. Arguments: root, from, to.
*/}}
{{- define "mycora.entrance" -}}
{{- $meshed := and (include "mycora.isMeshed" (dict "root" .root "service" .from)) (include "mycora.isMeshed" (dict "root" .root "service" .to)) -}}
{{- if not $meshed -}}tls
{{- else if and (eq .from "router") (eq .to "scheduler") -}}{{ include "mycora.schedulerEntrance" .root }}
{{- else -}}mesh
{{- end -}}
{{- end }}

{{/*
Numbers of the ports that a caller has to reach for that, as NetworkPolicy ports. Between two proxies of Linkerd all
traffic goes to the inbound port of the proxy. Arguments: root, from, to.
*/}}
{{- define "mycora.callPorts" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .to -}}
{{- $entrance := include "mycora.entrance" . -}}
- {protocol: TCP, port: {{ eq $entrance "mesh" | ternary $about.mesh $about.port }}}
{{- if and (eq .root.Values.mesh.kind "linkerd") (include "mycora.isMeshed" (dict "root" .root "service" .from)) (include "mycora.isMeshed" (dict "root" .root "service" .to)) }}
- {protocol: TCP, port: {{ .root.Values.mesh.linkerdInboundPort }}}
{{- end }}
{{- end }}

{{/*
URL of another service. Arguments: root, from, to.
*/}}
{{- define "mycora.url" -}}
{{- $about := get (fromYaml (include "mycora.services" .root)) .to -}}
{{- $host := printf "%s.%s.svc" (include "mycora.object" (dict "root" .root "service" .to)) .root.Release.Namespace -}}
{{- if eq (include "mycora.entrance" .) "mesh" -}}
http://{{ $host }}:{{ $about.mesh }}
{{- else -}}
https://{{ $host }}:{{ $about.port }}
{{- end -}}
{{- end }}
