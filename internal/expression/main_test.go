package expression_test

import (
	"testing"

	"driftless/internal/realtest"
)

func TestMain(m *testing.M) { realtest.Main(m) }
