{{/* Base of the names: "outrigger" for a release of that name, else RELEASE-outrigger. At most 40 characters, as suffixes follow. */}}
{{- define "outrigger.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of the operator's Deployment, ServiceAccount, Service, Lease and namespaced RBAC. */}}
{{- define "outrigger.operator" -}}
{{ include "outrigger.fullname" . }}-operator
{{- end -}}

{{/* Name of cluster-wide objects: two releases of one name in two namespaces do not share them. */}}
{{- define "outrigger.clusterName" -}}
{{ include "outrigger.fullname" . }}-{{ .Release.Namespace }}
{{- end -}}

{{- define "outrigger.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "outrigger.labels" -}}
{{ include "outrigger.selectorLabels" . }}
app.kubernetes.io/part-of: outrigger
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Reference of an image: (dict "root" $ "image" .Values.image.operator). */}}
{{- define "outrigger.image" -}}
{{- $registry := .root.Values.image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ coalesce .image.tag .root.Values.image.tag .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* What every container of the chart runs as: fits the Pod Security Standard "restricted". */}}
{{- define "outrigger.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{- define "outrigger.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What the operator needs on the objects it works with: in one ClusterRole, or in a Role for each watched namespace. */}}
{{- define "outrigger.rules" -}}
# The resources it serves: read, and write nothing but their status.
- apiGroups: [outrigger.dev]
  resources: [agents, mcpservers, skills]
  verbs: [get, list, watch]
- apiGroups: [outrigger.dev]
  resources: [agents/status, mcpservers/status, skills/status]
  verbs: [patch]
# To set itself as their children's blocking owner where the cluster enforces that right.
- apiGroups: [outrigger.dev]
  resources: [agents/finalizers, mcpservers/finalizers, skills/finalizers]
  verbs: [update]
# The children it makes, by server-side apply, and removes when they are no longer asked for.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
# Which ReplicaSets still use an old boot ConfigMap.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
# What became of the pods: readiness, waiting reasons, the address to ask for details.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
