{{/* The image of everything that is ours: by its digest, if there is one, which nobody can move to other contents. */}}
{{- define "aliquot.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
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
{{ .Values.mode | replace "all" "qgpu,t9k,gpushare" | replace "+" "," }}
{{- end -}}

{{- define "aliquot.hasDialect" -}}
{{ if has .dialect (splitList "," (include "aliquot.dialects" .root)) }}yes{{ end }}
{{- end -}}

{{/* The resources whose Pods are ours: dialects/wire/schedulerconfig.py has the same table, and a test compares them. */}}
{{- define "aliquot.resources" -}}
qgpu: [tke.cloud.tencent.com/qgpu-memory, tke.cloud.tencent.com/qgpu-core, tke.cloud.tencent.com/qgpu-core-greedy]
t9k: [tensorstack.dev/nvidia-gpu, tensorstack.dev/nvidia-gpu-percent, tensorstack.dev/nvidia-gpu-node]
gpushare: [aliyun.com/gpu-mem, aliyun.com/gpu-count, aliyun.com/gpu-core.percentage]
hami: [nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/gpumem, nvidia.com/gpumem-percentage, nvidia.com/gpucores, nvidia.com/priority]
kai: [aliquot.dev/card-place]
{{- end -}}

{{/* The labels by which the nodes of each dialect are known. */}}
{{- define "aliquot.nodeLabels" -}}
qgpu: {key: qgpu-device-enable, values: [enable]}
t9k: {key: sched.tensorstack.dev/accelerator, values: [nvidia-gpu]}
gpushare: {key: gpushare, values: ["true"]}
hami: {key: aliquot.dev/serve-nvidia-gpu, values: ["true"]}
kai: {key: aliquot.dev/serve-kai, values: ["true"]}
{{- end -}}

{{/* Whether what Prometheus' operator knows is made. */}}
{{- define "aliquot.monitoring" -}}
{{- $asked := toString .Values.monitoring.enabled -}}
{{ if or (eq $asked "true") (and (eq $asked "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}yes{{ end }}
{{- end -}}

{{- define "aliquot.schedulerNames" -}}
{{ ternary "aliquot-scheduler,t9k=t9k-scheduler" "aliquot-scheduler" (not (empty (include "aliquot.hasDialect" (dict "root" . "dialect" "t9k")))) }}
{{- end -}}

{{/* Whether our kube-scheduler has the gate SchedulerPopFromBackoffQ: by its image's tag, else by the cluster's version. */}}
{{- define "aliquot.popsFromBackoff" -}}
{{- $tag := regexFind ":v1\\.[0-9]+\\.[0-9]+" .Values.kubeScheduler.image | trimPrefix ":" -}}
{{ if semverCompare ">=1.33-0" (default .Capabilities.KubeVersion.Version $tag) }}yes{{ end }}
{{- end -}}

{{/* Of what is there only while the release is deleted. */}}
{{- define "aliquot.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Machines that the image is for. */}}
{{- define "aliquot.ownMachines" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: kubernetes.io/os, operator: In, values: [linux]}
          - {key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}
{{- end -}}

{{/* What the GPU Operator's driver manager and MIG manager set a label nvidia.com/gpu.deploy.* to while they work. */}}
{{- define "aliquot.operatorPauses" -}}
paused-for-driver-upgrade, paused-for-mig-change
{{- end -}}

{{/* The nodes of the agents. */}}
{{- define "aliquot.agentPlacement" -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: # one of them is enough
        {{- $dialects := splitList "," (include "aliquot.dialects" .) }}
        {{- $known := include "aliquot.nodeLabels" . | fromYaml }}
        {{- $labels := .Values.agent.nodeLabels }}
        {{- if not $labels }}
        {{- range $dialects }}{{ $labels = append $labels (index $known .) }}{{ end }}
        {{- /* "false" too: the kubelet asks the agent before it ends a Pod that has a claim from before. */}}
        {{- if .Values.dra.enabled }}{{ $labels = append $labels (dict "key" "aliquot.dev/dra" "values" (list "true" "false")) }}{{ end }}
        {{- $labels = append $labels (dict "key" "aliquot.dev/share-cards-with-other-plugins" "values" (list "true")) }}
        {{- $labels = append $labels (dict "key" "nvidia.com/gpu.present" "values" (list "true") "found" true) }}
        {{- $labels = append $labels (dict "key" "feature.node.kubernetes.io/pci-10de.present" "values" (list "true") "found" true) }}
        {{- end }}
        {{- range $labels }}
        - matchExpressions:
            - {key: {{ .key }}, operator: In, values: {{ toJson .values }}}
            - {key: kubernetes.io/os, operator: In, values: [linux]}
            - {key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}
            # Nodes of AMD and Huawei are their own plugins'.
            - {key: sched.tensorstack.dev/accelerator, operator: NotIn, values: [amd-gpu, huawei-npu]}
            # Their owner leaves them to another device plugin.
            - {key: aliquot.dev/share-cards-with-other-plugins, operator: NotIn, values: ["false"]}
            # While the GPU Operator exchanges the driver or changes MIG, nobody may hold the driver: it sets its labels to these.
            - {key: nvidia.com/gpu.deploy.client, operator: NotIn, values: [{{ include "aliquot.operatorPauses" . }}, "false"]}
            - {key: nvidia.com/gpu.deploy.gpu-feature-discovery, operator: NotIn, values: [{{ include "aliquot.operatorPauses" . }}]}
            {{- if .found }}
            # The GPU Operator has the cards for virtual machines there.
            - {key: nvidia.com/gpu.deploy.sandbox-validator, operator: DoesNotExist}
            - {key: nvidia.com/gpu.workload.config, operator: NotIn, values: [vm-passthrough, vm-vgpu]}
            # The GPU Operator runs NVIDIA's device plugin there, or will again.
            - {key: nvidia.com/gpu.deploy.device-plugin, operator: NotIn, values: ["true", {{ include "aliquot.operatorPauses" . }}]}
            {{- end }}
        {{- end }}
tolerations:
  - {key: sched.tensorstack.dev/xgn-mode, operator: Exists}
  - {key: nvidia.com/gpu, operator: Exists}
  - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
  {{- with .Values.agent.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.agent.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* For Helm: leave it when the release is uninstalled, because Pods that run on may need their simulated cards. The hook deletes the
cards if no Pod does. */}}
{{- define "aliquot.keptCards" -}}
{{- if and .Values.agent.enabled .Values.agent.simulate .Values.uninstall.sweepNodes (eq .Values.uninstall.runningPods "keep") -}}
annotations:
  helm.sh/resource-policy: keep
{{- end }}
{{- end }}

{{/* MiB of agent.hostPool, which --host-pool takes: without a unit GiB. */}}
{{- define "aliquot.poolMib" -}}
{{- $unit := regexFind "[MGT]" .Values.agent.hostPool | default "G" -}}
{{- mulf (regexFind "^[0-9.]+" .Values.agent.hostPool | float64) (index (dict "M" 1 "G" 1024 "T" 1048576) $unit) | floor | int64 -}}
{{- end -}}

{{/* MiB of a Kubernetes quantity of memory, rounded up. */}}
{{- define "aliquot.memoryMib" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $bytes := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- if not (and (hasKey $bytes $unit) (regexMatch "^[0-9]+([.][0-9]+)?[A-Za-z]*$" $text)) -}}
{{- fail (printf "agent.resources: memory %s is not allowed with agent.hostPool, which is added to it: write for example 300Mi" $text) -}}
{{- end -}}
{{- divf (mulf (regexFind "^[0-9.]+" $text | float64) (index $bytes $unit)) 1048576 | ceil | int64 -}}
{{- end -}}

{{/* Resources of the agent's container. The memory of the pool is its own: it is added to what is requested and to the limit. Simulated
cards need none of it. */}}
{{- define "aliquot.agentResources" -}}
{{- $resources := deepCopy (.Values.agent.resources | default dict) -}}
{{- if and (ne .Values.agent.hostPool "0") (not .Values.agent.simulate) -}}
{{- $pool := include "aliquot.poolMib" . -}}
{{- range $resources }}
{{- if hasKey . "memory" }}{{ $_ := set . "memory" (printf "%dMi" (add (include "aliquot.memoryMib" .memory) $pool)) }}{{ end }}
{{- end }}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
