{{/* The image of everything that is ours. */}}
{{- define "aliquot.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "aliquot.labels" -}}
{{ include "aliquot.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/* What a Deployment, a DaemonSet or a Service finds its Pods by: it can never change. */}}
{{- define "aliquot.selector" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* The dialects of the mode, as --dialects takes them. */}}
{{- define "aliquot.dialects" -}}
{{ eq .Values.mode "all" | ternary "qgpu,t9k,gpushare" .Values.mode }}
{{- end -}}

{{- define "aliquot.hasDialect" -}}
{{ if has .dialect (splitList "," (include "aliquot.dialects" .root)) }}yes{{ end }}
{{- end -}}

{{/* The resources whose Pods are ours: dialects/wire/schedulerconfig.py has the same table, and a test compares them. */}}
{{- define "aliquot.resources" -}}
qgpu: [tke.cloud.tencent.com/qgpu-memory, tke.cloud.tencent.com/qgpu-core, tke.cloud.tencent.com/qgpu-core-greedy]
t9k: [tensorstack.dev/nvidia-gpu, tensorstack.dev/nvidia-gpu-percent, tensorstack.dev/nvidia-gpu-node]
gpushare: [aliyun.com/gpu-mem, aliyun.com/gpu-count]
{{- end -}}

{{/* The labels by which the nodes of each dialect are known. */}}
{{- define "aliquot.nodeLabels" -}}
qgpu: {key: qgpu-device-enable, values: [enable]}
t9k: {key: sched.tensorstack.dev/accelerator, values: [nvidia-gpu]}
gpushare: {key: gpushare, values: ["true"]}
{{- end -}}

{{/* Whether what Prometheus' operator knows is made. */}}
{{- define "aliquot.monitoring" -}}
{{- $asked := toString .Values.monitoring.enabled -}}
{{ if or (eq $asked "true") (and (eq $asked "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}yes{{ end }}
{{- end -}}

{{- define "aliquot.schedulerNames" -}}
{{ ternary "aliquot-scheduler,t9k=t9k-scheduler" "aliquot-scheduler" (not (empty (include "aliquot.hasDialect" (dict "root" . "dialect" "t9k")))) }}
{{- end -}}

{{/* Of what is there only while the release is deleted. */}}
{{- define "aliquot.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
