// Package draw makes pictures of choreographies: ranks as rows, messages as arrows.
package draw
