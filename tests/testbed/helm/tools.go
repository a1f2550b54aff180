//go:build tools

package testbed

import _ "helm.sh/helm/v4/cmd/helm"
