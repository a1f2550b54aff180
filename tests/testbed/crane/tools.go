//go:build tools

package testbed

import _ "github.com/google/go-containerregistry/cmd/crane"
