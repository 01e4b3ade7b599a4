package rank

import (
	"encoding/binary"
	"fmt"
	"math/big"

	"github.com/kolo-ccl/kolo"
)

// overflow finds an element of a reduction of integers, by the ranks of this process,
// whose sum or product its type cannot hold; nil if Config.Diagnose does not ask or there
// is none. Only what stands alone can be checked: groups within this process.
func (h *hub) overflow(rd *round) error {
	c := &rd.tickets[h.mine[0]].call
	if h.p.cfg.Diagnose&Overflow == 0 || h.far != nil || !c.Collective.Reduces() {
		return nil
	}
	least, most, ok := rangeOf(c.DType)
	if !ok || c.Op.Kind != kolo.OpSum && c.Op.Kind != kolo.OpProd {
		return nil
	}
	for _, r := range h.mine {
		if rd.tickets[r].in.Space != kolo.HostSpace {
			return nil
		}
	}
	size := int64(c.DType.Size())
	n := rd.tickets[h.mine[0]].in.Len() / size
	signed := least.Sign() < 0
	var total, v big.Int
	for i := range n {
		for k, r := range h.mine {
			setElement(&v, rd.tickets[r].in.Host[i*size:(i+1)*size], signed)
			switch {
			case k == 0:
				total.Set(&v)
			case c.Op.Kind == kolo.OpSum:
				total.Add(&total, &v)
			default:
				total.Mul(&total, &v)
			}
		}
		if total.Cmp(least) < 0 || total.Cmp(most) > 0 {
			e := rd.tickets[h.mine[0]].failure(fmt.Errorf("%w: element %d: %s of %d ranks is %v, which %v does not hold; it would wrap (rank 0 gives %v)%v",
				kolo.ErrLimit, i, map[bool]string{true: "the sum", false: "the product"}[c.Op.Kind == kolo.OpSum], len(h.mine), &total, c.DType,
				setElement(&v, rd.tickets[h.mine[0]].in.Host[i*size:(i+1)*size], signed), &rd.tickets[h.mine[0]].site))
			e.Rank = kolo.NoRank
			return e
		}
	}
	return nil
}

// rangeOf is the least and the most that an integer type holds.
func rangeOf(d kolo.DType) (least, most *big.Int, ok bool) {
	bits := uint(d.Size()) * 8
	one := big.NewInt(1)
	switch d {
	case kolo.Int8, kolo.Int16, kolo.Int32, kolo.Int64:
		most = new(big.Int).Lsh(one, bits-1)
		return new(big.Int).Neg(most), most.Sub(most, one), true
	case kolo.Uint8, kolo.Uint16, kolo.Uint32, kolo.Uint64:
		most = new(big.Int).Lsh(one, bits)
		return new(big.Int), most.Sub(most, one), true
	}
	return nil, nil, false
}

// setElement makes v the integer in b, of 1, 2, 4 or 8 bytes in the host's order.
func setElement(v *big.Int, b []byte, signed bool) *big.Int {
	var u uint64
	switch len(b) {
	case 1:
		u = uint64(b[0])
	case 2:
		u = uint64(binary.NativeEndian.Uint16(b))
	case 4:
		u = uint64(binary.NativeEndian.Uint32(b))
	default:
		u = binary.NativeEndian.Uint64(b)
	}
	if shift := 64 - 8*uint(len(b)); signed {
		return v.SetInt64(int64(u<<shift) >> shift)
	}
	return v.SetUint64(u)
}
