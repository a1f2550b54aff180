//go:build tools

package testbed

import _ "sigs.k8s.io/kueue/cmd/kueue"
