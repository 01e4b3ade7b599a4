package main

// reduction adds elements lo to hi of all sources in the order of the ranks and writes
// the sums to every target, from element lo-base on. The targets may be the sources, if
// base is 0.
type reduction func(targets, sources [][]float32, base, lo, hi int)

// rowReduction goes block by block: a block of scratch takes one source after the other,
// and is copied to the targets while it is in the first cache.
func rowReduction(targets, sources [][]float32, base, lo, hi int) {
	var scratch [2048]float32
	for at := lo; at < hi; {
		n := min(len(scratch), hi-at)
		sum := scratch[:n]
		addPair(sum, sources[0][at:at+n], sources[1][at:at+n])
		for _, s := range sources[2:] {
			addPair(sum, sum, s[at:at+n])
		}
		for _, t := range targets {
			copy(t[at-base:], sum)
		}
		at += n
	}
}

// addPair is dst = a + b, eight elements at a time without bounds checks.
func addPair(dst, a, b []float32) {
	for len(dst) >= 8 && len(a) >= 8 && len(b) >= 8 {
		d, x, y := (*[8]float32)(dst), (*[8]float32)(a), (*[8]float32)(b)
		d[0] = x[0] + y[0]
		d[1] = x[1] + y[1]
		d[2] = x[2] + y[2]
		d[3] = x[3] + y[3]
		d[4] = x[4] + y[4]
		d[5] = x[5] + y[5]
		d[6] = x[6] + y[6]
		d[7] = x[7] + y[7]
		dst, a, b = dst[8:], a[8:], b[8:]
	}
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

// fusedReduction loads an element of every source, adds, and stores to every target. Two
// and four sources have a loop of their own.
func fusedReduction(targets, sources [][]float32, base, lo, hi int) {
	if len(targets) != len(sources) && len(targets) != 1 {
		panic("peers: a reduction with some of the targets")
	}
	switch len(sources) {
	case 2:
		fuse2(targets, sources, base, lo, hi)
	case 4:
		fuse4(targets, sources, base, lo, hi)
	default:
		fuse(targets, sources, base, lo, hi)
	}
}

func fuse2(targets, sources [][]float32, base, lo, hi int) {
	t := targets[0][lo-base : hi-base]
	a, b := sources[0][lo:hi][:len(t)], sources[1][lo:hi][:len(t)]
	if len(targets) == 1 {
		addPair(t, a, b)
		return
	}
	u := targets[1][lo-base : hi-base][:len(t)]
	for i := range t {
		s := a[i] + b[i]
		t[i], u[i] = s, s
	}
}

func fuse4(targets, sources [][]float32, base, lo, hi int) {
	t := targets[0][lo-base : hi-base]
	a, b := sources[0][lo:hi][:len(t)], sources[1][lo:hi][:len(t)]
	c, d := sources[2][lo:hi][:len(t)], sources[3][lo:hi][:len(t)]
	if len(targets) == 1 {
		for i := range t {
			t[i] = a[i] + b[i] + c[i] + d[i]
		}
		return
	}
	u, v := targets[1][lo-base : hi-base][:len(t)], targets[2][lo-base : hi-base][:len(t)]
	w := targets[3][lo-base : hi-base][:len(t)]
	for i := range t {
		s := a[i] + b[i] + c[i] + d[i]
		t[i], u[i], v[i], w[i] = s, s, s, s
	}
}

// fuse keeps the sums of four columns in registers while it goes over the rows.
func fuse(targets, sources [][]float32, base, lo, hi int) {
	at := lo
	for ; at+4 <= hi; at += 4 {
		x := (*[4]float32)(sources[0][at:])
		s0, s1, s2, s3 := x[0], x[1], x[2], x[3]
		for _, row := range sources[1:] {
			x = (*[4]float32)(row[at:])
			s0 += x[0]
			s1 += x[1]
			s2 += x[2]
			s3 += x[3]
		}
		for _, row := range targets {
			*(*[4]float32)(row[at-base:]) = [4]float32{s0, s1, s2, s3}
		}
	}
	for ; at < hi; at++ {
		s := sources[0][at]
		for _, row := range sources[1:] {
			s += row[at]
		}
		for _, row := range targets {
			row[at-base] = s
		}
	}
}
