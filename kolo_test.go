package kolo_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// The numbers and names are HCCL's (HcclDataType; the names are hccl_test's).
func TestElementTypes(t *testing.T) {
	numbers := map[string]kolo.DType{"int8": 0, "int16": 1, "int32": 2, "fp16": 3, "fp32": 4, "int64": 5, "uint64": 6, "uint8": 7, "uint16": 8,
		"uint32": 9, "fp64": 10, "bfp16": 11, "int128": 12, "hif8": 14, "fp8e4m3": 15, "fp8e5m2": 16, "fp8e8m0": 17}
	require.Len(t, kolo.DTypes(), len(numbers))
	for _, d := range kolo.DTypes() {
		require.Equal(t, numbers[d.String()], d, d.String())
		back, err := kolo.ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, back)
		require.True(t, d.Valid())
		require.Less(t, int(d), kolo.NumDTypes)
	}
	for _, d := range []kolo.DType{13, 18, 99, 255} {
		require.False(t, d.Valid(), "%d", uint8(d))
		require.Zero(t, d.Size(), "%d", uint8(d))
	}
	for name, want := range map[string]kolo.DType{"half": kolo.Float16, "float": kolo.Float32, "double": kolo.Float64, "bf16": kolo.BFloat16} {
		d, err := kolo.ParseDType(name)
		require.NoError(t, err)
		require.Equal(t, want, d)
	}
	_, err := kolo.ParseDType("fp4")
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, `"fp4"`)
}

func TestWhichTypesAreReduced(t *testing.T) {
	for _, d := range kolo.DTypes() {
		for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(3)} {
			if err := op.Check(d); d.Reducible() {
				require.NoError(t, err, "%v of %v", op, d)
			} else {
				require.ErrorIs(t, err, kolo.ErrUnsupported, "%v of %v", op, d)
				require.ErrorContains(t, err, d.String())
			}
		}
	}
	for _, at := range []struct {
		d     kolo.DType
		scale float64
	}{{kolo.Int8, 128}, {kolo.Int8, -129}, {kolo.Uint16, -1}, {kolo.Uint16, 65536}, {kolo.Int32, 0.5}} {
		require.ErrorIs(t, kolo.PreMulSum(at.scale).Check(at.d), kolo.ErrUnsupported, "%v of %v", at.scale, at.d)
	}
	require.ErrorIs(t, kolo.ReduceOp{Kind: 9}.Check(kolo.Int8), kolo.ErrArgument)
	require.ErrorIs(t, kolo.Sum.Check(13), kolo.ErrArgument)
}

func TestCallsThatDifferSayIn(t *testing.T) {
	a := kolo.Call{Collective: kolo.AllGatherV, DType: kolo.Int32, Counts: []int64{1, 2, 3}}
	for want, change := range map[string]func(c *kolo.Call){
		"[]":                                   func(c *kolo.Call) {},
		"[element type int32 instead of fp32]": func(c *kolo.Call) { c.DType = kolo.Float32 },
		"[number of counts 3 instead of 2]":    func(c *kolo.Call) { c.Counts = []int64{1, 2} },
		"[counts[1] 2 instead of 7]":           func(c *kolo.Call) { c.Counts = []int64{1, 7, 3} },
		"[2 counts, the first of them counts[0] 1 instead of 4]": func(c *kolo.Call) { c.Counts = []int64{4, 2, 5} },
	} {
		b := a
		change(&b)
		require.Equal(t, want, fmt.Sprint(a.Diff(&b)))
		require.Equal(t, want == "[]", a.Signature() == b.Signature(), "the signature of %v", &b)
	}
	b := kolo.Call{Collective: kolo.Broadcast, DType: kolo.Uint8, Count: 4, Root: 2}
	require.Equal(t, []string{"collective AllGatherV(3 counts of int32) instead of Broadcast(4 uint8, root 2)"}, a.Diff(&b))
}

func TestErrorSaysWhereAndUnwraps(t *testing.T) {
	e := &kolo.Error{Op: kolo.AllReduce, Group: "tp", Rank: 3, Peer: 5, Seq: 7, Err: fmt.Errorf("%w: its socket has closed", kolo.ErrLost)}
	require.EqualError(t, e, `kolo: AllReduce #7 in group "tp" on rank 3 (peer 5): connection lost: its socket has closed`)
	require.ErrorIs(t, fmt.Errorf("step 4: %w", e), kolo.ErrLost)
	var as *kolo.Error
	require.True(t, errors.As(fmt.Errorf("step 4: %w", e), &as))
	require.EqualError(t, &kolo.Error{Rank: kolo.NoRank, Peer: kolo.NoRank, Err: kolo.ErrClosed}, "kolo: closed")
	require.Equal(t, "2, 5 and 7", kolo.RankList([]kolo.Rank{2, 5, 7}))
	require.Equal(t, "4", kolo.RankList([]kolo.Rank{4}))
	many := make([]kolo.Rank, 40)
	for i := range many {
		many[i] = kolo.Rank(i)
	}
	require.Contains(t, kolo.RankList(many), ", 15 and 24 more")
}

func TestReduceOpsAreReadBack(t *testing.T) {
	for _, o := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(0.5), kolo.PreMulSum(-1e-30), kolo.PreMulSum(0)} {
		back, err := kolo.ParseReduceOp(o.String())
		require.NoError(t, err)
		require.Equal(t, o, back)
	}
	for _, name := range []string{"", "SUM", "sum ", "premulsum", "premulsum(", "premulsum()", "premulsum(x)", "premulsum(2", "premulsum(2)x", "premulsum(2))", "premulsum 2)"} {
		_, err := kolo.ParseReduceOp(name)
		require.ErrorIs(t, err, kolo.ErrArgument, name)
	}
}
