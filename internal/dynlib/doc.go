// Package dynlib finds shared libraries at run time and binds their functions, without cgo.
package dynlib
