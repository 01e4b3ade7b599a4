// Package ctxerr says why a context has ended, in the errors of this module.
package ctxerr
